"""A run of a benchmark: decoding, keeping and grading answers."""
