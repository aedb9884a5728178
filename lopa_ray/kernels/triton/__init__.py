"""The Triton kernels of the operators, one module per operator, each with a function `launch`. CUDA imports them."""
