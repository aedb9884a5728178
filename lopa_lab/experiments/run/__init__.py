"""Common parts of all experiments: how their points are measured and kept, and how records become findings."""
