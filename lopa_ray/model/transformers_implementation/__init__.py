"""Models that the package transformers runs: their weights and modules."""
