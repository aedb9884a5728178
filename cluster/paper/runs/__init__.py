"""A run of a benchmark: what is decoded, kept and graded."""
