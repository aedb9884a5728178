"""Lookahead Parallel Decoding for diffusion language models: the decoder, without Ray."""

__version__ = "0.1.0"
