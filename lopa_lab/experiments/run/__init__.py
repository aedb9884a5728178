"""What all experiments share: how their points are measured and kept, and how records become findings."""
