"""OpenAI's API: what requests may hold, what responses look like, and errors in its shape."""
