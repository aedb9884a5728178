"""How a forward runs: packed branches, attention, KV cache, LM head and sampling, on any device."""
