"""Reading what a checkpoint says of its model in JSON files, before a family is known, without torch."""
