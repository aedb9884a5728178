"""The OpenAI-compatible endpoint on Ray Serve. Needs the extra `lopa-ray[serve]`."""
