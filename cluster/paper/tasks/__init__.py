"""The benchmarks of the paper: how they ask, and what an answer scores."""
