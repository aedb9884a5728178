"""What the HTTP layer and the replicas share: the calls of a group and of all groups, and their messages."""
