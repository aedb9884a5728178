"""Structured output: patterns and JSON schemas as automata over tokens, for canvases that fill in any order."""
