"""The messages between sessions, runners and actors: frozen, picklable and free of torch."""
