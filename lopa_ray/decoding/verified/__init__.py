"""Verified lookahead: branches that guess the next denoising steps, verified in the same forward."""
