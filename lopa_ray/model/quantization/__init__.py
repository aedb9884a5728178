"""Formats of weights: layers, and how checkpoints store them."""
