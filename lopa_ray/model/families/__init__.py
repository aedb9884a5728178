"""Model families, one value each, and how their published checkpoints are read."""
