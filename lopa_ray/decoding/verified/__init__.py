"""Verified lookahead: branches that guess the next steps of the rule, verified in the same forward."""
