"""The way from a request to the choices that answer it, on any engine: prompts, formats of answers, text."""
