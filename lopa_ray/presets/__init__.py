"""The model that ships for a first try."""
