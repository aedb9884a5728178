"""A problem on which verified lookahead accepts drafts, with the model of the package."""

from __future__ import annotations

from lopa_ray.decoding.decoders.lopa import LopaSettings

PROBLEM = "Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?"

VERIFIED = LopaSettings(num_branches=8, lookahead="verified", max_new_tokens=64)
