"""What reports of evaluations and benchmarks share: machine, checkout, Markdown, figures."""
