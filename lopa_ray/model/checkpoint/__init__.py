"""Checkpoints on disk: their configuration files and tensors, and adapters."""
