"""The benchmarks of the paper: their prompts, and the scores of answers."""
