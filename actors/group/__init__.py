"""The master's side of a group: steps, membership, and workers on their way."""
