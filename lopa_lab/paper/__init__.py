"""The tables and figures of LoPA's paper (arXiv 2512.16229): what makes each cell, run beside what is published."""
