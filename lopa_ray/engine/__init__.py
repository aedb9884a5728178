"""Prompts in, results out: the engine of one process, and what every engine shares."""
