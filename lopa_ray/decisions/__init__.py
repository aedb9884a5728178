"""Decisions: typed questions about an input, from their wording to probabilities."""
