"""A small request for each shape of a step's plan, by name, for tests of groups that lose workers.

What a recovery has to bring back is in the plan alone, so other decoders with plans of these shapes need no rows here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.renoising import RenoisingSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.likelihood_session import LikelihoodSession
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.protocol.vocabulary import Vocabulary
from support.decision_cases import random_question

FULL = {"block_size": 4, "confidence_threshold": 0.6, "stop_at_eos": False}

GIVEN = ({"token_ids": [5]}, {"hole": 5, "token_ids": [9, 8, 7, 6, 5, 4]}, {"hole": 3, "token_ids": [3, 2]})
"""Parts of an answer, one of which has blocks of its own."""

DECODES: dict[str, GenerationSettings] = {
    # Each branch stages K/V of its own.
    "two_phase": LopaSettings(**FULL, max_new_tokens=24, num_branches=4),
    # The branches share what is staged, in segments.
    "single_phase": LopaSettings(**FULL, max_new_tokens=24, num_branches=3, window_attention="block_causal"),
    # Cached spans have a hole.
    "dual_cache": FastDllmSettings(max_new_tokens=20, block_size=8, confidence_threshold=0.6),
    # Drafts and causal rows.
    "joint_speculation": SelfSpeculationSettings(
        max_new_tokens=8, block_size=4, num_branches=4, stop_at_eos=False
    ),
    # A step decides what several steps of the rule decide.
    "verified": LopaSettings(**FULL, max_new_tokens=24, num_branches=6, lookahead="verified"),
    # A branch computes positions that the others read from the cache.
    "cache_ahead": FastDllmSettings(
        max_new_tokens=24, block_size=8, confidence_threshold=0.6, num_branches=6, lookahead="verified"
    ),
    # Blocks that are cached without a step that fills them.
    "given": LopaSettings(**FULL, max_new_tokens=36, num_branches=3, given_parts=GIVEN),
}

CANVASES: dict[str, GenerationSettings] = {
    "canvases": RenoisingSettings(max_new_tokens=32, max_denoising_steps=7, entropy_bound=1.0, seed=4),
    # A canvas begins with a draft, and keeps a token.
    "early_stops": RenoisingSettings(
        max_new_tokens=48,
        max_denoising_steps=9,
        entropy_bound=2.0,
        confidence_threshold=0.3,
        ignore_eos=True,
        draft=tuple(range(20, 44)),
        given_parts=({"at": 7, "token_ids": [9]},),
    ),
}
"""Of a model without a mask token, whose steps are each conditioned on the one before."""

KINDS = (*DECODES, "decision", "likelihood")
"""The last two have no tokens: one stores its prompt in one step for all others, one stores nothing."""


def new_request(kind: str, prompt: Sequence[int], vocabulary: Vocabulary) -> RequestSession:
    """A request of one of `KINDS` or `CANVASES`."""
    if kind == "decision":
        draw = random.Random(prompt[-1])
        questions = [random_question(draw, vocabulary.eos_token_id) for _ in range(5)]
        attention = PromptAttention("causal")
        return DecisionSession(prompt, questions, vocabulary, attention=attention, max_step_rows=40)
    if kind == "likelihood":
        return LikelihoodSession(prompt, [*range(10, 31)], vocabulary, mc_num=9, masks_per_step=3)
    return new_session(prompt, (DECODES | CANVASES)[kind], vocabulary)
