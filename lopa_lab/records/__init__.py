"""For evaluations, benchmarks and experiments: records, resumable logs of points, machine, Markdown, figures."""
