"""What ships for a first try: a small model, and the word problems that it solves."""
