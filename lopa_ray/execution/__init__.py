"""Execution of forwards on any device: packed branches, attention, KV cache, LM head and sampling."""
