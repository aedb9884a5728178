"""The outside world: the command line, and what runs decode groups on a cluster."""
