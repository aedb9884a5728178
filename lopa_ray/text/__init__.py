"""Conversion of text to token ids and back: tokenizers, chat templates and tool formats."""
