"""Many requests from a file, decoded in flight together, with results in input order."""
