"""Typed questions about an input, in OpenAI's shape."""
