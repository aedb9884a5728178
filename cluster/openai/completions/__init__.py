"""Chat and text completions."""
