"""Labelled questions: how often the answers of a model are right, and how well its probabilities fit."""
