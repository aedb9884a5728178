"""The Triton kernels of the operators: one module per operator, with a function `launch`, imported on CUDA only."""
