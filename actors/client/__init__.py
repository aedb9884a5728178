"""One engine's side of a group: events of one group after the other, and what requests continue from."""
