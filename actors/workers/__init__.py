"""Branch workers as actors: placement, weights, and the actor itself."""
