"""Formats of weights: what layers store, and how they multiply by it."""
