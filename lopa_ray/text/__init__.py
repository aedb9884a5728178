"""Text to token ids and back: tokenizers and chat templates."""
