"""Operators of a step. Each has a Triton kernel for CUDA and a reference implementation in torch for other devices."""
