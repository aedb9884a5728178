"""Records of evaluations, benchmarks and experiments, resumable logs of points, machine, Markdown and figures."""
