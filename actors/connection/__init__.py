"""The connection of a driver to Ray."""
