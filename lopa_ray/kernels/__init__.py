"""Operators of a step: each has a Triton kernel for CUDA, and a reference in torch for every other device."""
