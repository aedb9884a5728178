"""Sessions with any settings, and their walk through a fake model, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from lopa_ray.config.decoder_settings import (
    BlockDiffusionSettings,
    BlockSettings,
    D2FSettings,
    FastDllmSettings,
    LopaSettings,
    VanillaSettings,
)
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.report import BranchReport
from support.fake_model import VOCABULARY, FakeModel

MASK, EOS = VOCABULARY.mask_token_id, VOCABULARY.eos_token_id
UNIT = st.floats(0, 1).map(lambda x: round(x, 2))
PROMPTS = st.lists(st.integers(0, EOS), min_size=1, max_size=7)
MODELS = st.builds(
    FakeModel,
    seed=st.integers(0, 2**16),
    eos_probability=st.sampled_from([0.0, 0.05, 0.3]),
    levels=st.sampled_from([3, 1000]),
    sureness=st.sampled_from([0.3, 1.0, 3.0]),
)


@st.composite
def any_common(draw: st.DrawFn) -> dict[str, object]:
    """Settings that all decoders share."""
    length = draw(st.integers(1, 40))
    return {
        "max_new_tokens": length,
        "min_tokens": draw(st.integers(0, length)),
        "ignore_eos": draw(st.booleans()),
        "stop_at_eos": draw(st.booleans()),
        "ranking": draw(st.sampled_from(["probability", "margin", "neg_entropy"])),
        "top_logprobs": draw(st.sampled_from([0, 2])),
        "confidence_threshold": draw(UNIT),
        "block_size": draw(st.integers(1, 17)),
    }


@st.composite
def any_lookahead(draw: st.DrawFn) -> dict[str, object]:
    """Settings of the race, plain decoding among them."""
    return {
        "num_branches": draw(st.integers(1, 6)),
        "branch_confidence": draw(st.sampled_from(["mean", "bottom(0.3)", "bottom(0)", "bottom(1)"])),
        "creation_confidence_alpha": draw(st.sampled_from([0.0, 0.0, 0.4, 1.0])),
        "anchor": draw(st.sampled_from(["compete", "compete", "win", "omit"])),
    }


@st.composite
def any_blocks(draw: st.DrawFn) -> BlockSettings:
    """lopa and d2f."""
    common = draw(any_common()) | {
        "block_add_threshold": draw(UNIT),
        "decoded_token_threshold": draw(UNIT),
        "window_attention": draw(st.sampled_from(["full", "block_causal"])),
    }
    if draw(st.integers(0, 4)) == 0:
        return D2FSettings(**common)
    return LopaSettings(**draw(any_lookahead()), **common)


@st.composite
def any_vanilla(draw: st.DrawFn) -> VanillaSettings:
    """Every sampler and rule, by blocks or not."""
    common = (
        draw(any_common()) | draw(any_lookahead()) | {"sampler": draw(st.sampled_from(["dream", "llada"]))}
    )
    del common["confidence_threshold"]
    if draw(st.booleans()):
        del common["block_size"]
    remasking = draw(st.sampled_from(["low_confidence", "low_confidence", "random", "origin"]))
    if remasking == "low_confidence":
        common["alg_temp"] = draw(st.sampled_from([0.0, 0.5]))
    blocks = VanillaSettings(**common).num_blocks
    steps = draw(st.sampled_from([None, 1, 2, 5]))
    return VanillaSettings(
        remasking=remasking,
        steps=None if steps is None else blocks * steps,
        seed=draw(st.integers(0, 9)),
        **common,
    )


@st.composite
def any_fast_dllm(draw: st.DrawFn) -> FastDllmSettings:
    """Every cache and every way to fill."""
    common = draw(any_common()) | draw(any_lookahead())
    common["sampler"] = draw(st.sampled_from(["dream", "llada"]))
    common["cache"] = draw(st.sampled_from(["none", "prefix", "dual"]))
    fill = draw(st.sampled_from(["threshold", "threshold", "factor", "schedule"]))
    blocks = FastDllmSettings(**common).num_blocks
    if fill == "factor":
        return FastDllmSettings(fill=fill, factor=draw(st.sampled_from([0.5, 1.0, 3.0])), **common)
    paced = fill == "schedule" or draw(st.booleans())
    return FastDllmSettings(fill=fill, steps=blocks * draw(st.integers(2, 6)) if paced else None, **common)


@st.composite
def any_block_diffusion(draw: st.DrawFn) -> BlockDiffusionSettings:
    """Every rule, with more and fewer passes than positions."""
    common = draw(any_common()) | draw(any_lookahead())
    size = draw(st.integers(1, 17))
    common["block_size"] = size
    rules = ["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]
    remasking = draw(st.sampled_from(rules))
    if remasking == "entropy_bounded":
        del common["ranking"]
    sub_blocks = draw(st.sampled_from([None, *(part for part in range(1, size + 1) if size % part == 0)]))
    return BlockDiffusionSettings(
        remasking=remasking,
        denoising_steps=draw(st.sampled_from([None, 1, 3, 20])),
        eb_threshold=draw(st.sampled_from([0.0, 0.5, 4.0])),
        fuse_store=sub_blocks is None and draw(st.booleans()),
        sub_block_size=sub_blocks,
        sub_block_cache=sub_blocks is not None and draw(st.booleans()),
        **common,
    )


BLOCKWISE = st.one_of(any_vanilla(), any_fast_dllm(), any_block_diffusion())
ANY = st.one_of(any_blocks(), BLOCKWISE)


def may_decide_nothing(wanted: GenerationSettings, plan: Plan) -> bool:
    """A schedule may plan such a call, and a chance may bring it about; and a block may only be cached."""
    return (
        isinstance(wanted, VanillaSettings) or getattr(wanted, "fill", None) == "schedule" or not plan.scored
    )


@dataclass(frozen=True)
class Step:
    """One step: the canvas before, what was planned, reported and decided."""

    before: list[int]
    plan: Plan
    reports: list[BranchReport]
    outcome: StepOutcome


def new(prompt: list[int], wanted: GenerationSettings) -> DecodeSession:
    return new_session(prompt, wanted, VOCABULARY)


def walk(session: DecodeSession, model: FakeModel) -> Iterator[Step]:
    while not session.finished:
        before = session.generated
        plan = session.plan()
        reports = model.reports(plan)
        yield Step(before, plan, reports, session.advance(reports))


def run(prompt: list[int], wanted: GenerationSettings, model: FakeModel) -> tuple[DecodeSession, list[Step]]:
    session = new(prompt, wanted)
    return session, list(walk(session, model))
