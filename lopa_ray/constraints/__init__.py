"""Structured output: patterns and JSON schemas as automata over tokens, for canvases that are filled in any order."""
