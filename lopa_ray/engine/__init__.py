"""Engines, which decode prompts to results: the engine of one process, and the base class of all engines."""
