"""Many requests in one group: steps, branches over workers, recovery, stored prefixes, scaling. No torch, no I/O."""
