"""What evaluations, benchmarks and experiments share: records, resumable logs of points, machine, Markdown, figures."""
