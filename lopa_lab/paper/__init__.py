"""The tables and figures of LoPA's paper (arXiv 2512.16229): the runs of their cells, next to published numbers."""
