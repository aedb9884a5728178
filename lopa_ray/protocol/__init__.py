"""What sessions, runners and actors say to each other: frozen, picklable and free of torch."""
