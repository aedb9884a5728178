"""Lookahead Parallel Decoding for diffusion language models: the decoder, without Ray."""
