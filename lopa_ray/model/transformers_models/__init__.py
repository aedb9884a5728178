"""Models that the package transformers runs."""
