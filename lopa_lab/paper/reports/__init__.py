"""What a run found: figures with intervals, and reports for people and programs."""
