"""The paper's evaluation: tasks, runs that continue after an interruption, figures, and tables beside the paper's."""
