"""The interface between the HTTP layer and the replicas: the calls of a group and of all groups, and their messages."""
