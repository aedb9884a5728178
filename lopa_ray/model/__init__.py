"""The transformer, the published families that it covers, and their checkpoints."""
