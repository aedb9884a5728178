"""Configurations of models that the package transformers runs, without torch."""
