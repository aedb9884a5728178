"""Requests with verified lookahead: a problem on which the model of the package accepts drafts, and any settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.lookahead_settings import OF_FORKS, LookaheadSettings
from support.context_model import ContextModel
from support.fake_model import VOCABULARY
from support.settings_strategies import ANY_SETTINGS

PROBLEM = "Mia buys 6 boxes of pens with 8 pens in each. She gives 15 pens to Tom. How many pens does Mia have left?"

VERIFIED = LopaSettings(num_branches=8, lookahead="verified", max_new_tokens=64)

CONTEXT_MODELS = st.builds(
    ContextModel,
    seed=st.integers(0, 2**16),
    stability=st.sampled_from([0.5, 0.9, 1.0]),
    eos_probability=st.sampled_from([0.0, 0.02, 0.2]),
    vocabulary=st.sampled_from([VOCABULARY, replace(VOCABULARY, shifted=True)]),
)

NOT_WITH_DRAFTS = {*OF_FORKS, "credit_alpha"}


@st.composite
def any_verified(draw: st.DrawFn) -> LookaheadSettings:
    """Settings of every decoder that has a lookahead, with the verified one."""
    wanted = draw(
        ANY_SETTINGS.filter(
            lambda wanted: DECODERS[wanted.decoder].verifies_drafts and "lookahead" not in wanted.refused
        )
    )
    given = {
        name: getattr(wanted, name) for name in wanted.model_fields_set - wanted.implied - NOT_WITH_DRAFTS
    }
    changes: dict[str, Any] = {
        "num_branches": draw(st.one_of(st.integers(2, 9), st.just("auto"))),
        "lookahead": "verified",
    }
    if draw(st.booleans()):
        changes |= {"temperature": draw(st.sampled_from([0.5, 1.0])), "seed": draw(st.integers(0, 9))}
    if "settled" in type(wanted).model_fields:
        changes["settled"] = draw(st.sampled_from([None, 0.05, 1.0]))
    return type(wanted)(**given | changes)
