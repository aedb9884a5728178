"""Calls of workers as actors, and their errors."""
