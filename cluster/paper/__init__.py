"""The paper's evaluation: its tasks, runs that go on after a loss, honest figures, and the tables beside one's own."""
