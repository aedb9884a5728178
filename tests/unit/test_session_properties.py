"""What every decode session keeps to, whatever the settings and whatever the model says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fakes import VOCABULARY, FakeModel
from hypothesis import given, settings
from hypothesis import strategies as st

import lopa_ray.decoders  # noqa: F401 - registers the decoders
from lopa_ray.answer import Answer, answer_ids
from lopa_ray.cache import merge
from lopa_ray.errors import PromptError, ProtocolError, ScoreError, StepLimitError
from lopa_ray.plan import BranchReport, Commit, Plan, StepOutcome
from lopa_ray.session import DecodeSession
from lopa_ray.settings import (
    DECODER_SETTINGS,
    BlockDiffusionSettings,
    BlockSettings,
    D2FSettings,
    FastDllmSettings,
    GenerationSettings,
    LookaheadSettings,
    LopaSettings,
    MaskedAnswerSettings,
    VanillaSettings,
)

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
    rules = ["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]
    remasking = draw(st.sampled_from(rules))
    if remasking == "entropy_bounded":
        del common["ranking"]
    return BlockDiffusionSettings(
        remasking=remasking,
        denoising_steps=draw(st.sampled_from([None, 1, 3, 20])),
        eb_threshold=draw(st.sampled_from([0.0, 0.5, 4.0])),
        fuse_store=draw(st.booleans()),
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
    return DecodeSession.create(prompt, wanted, VOCABULARY)


def walk(session: DecodeSession, model: FakeModel) -> Iterator[Step]:
    while not session.finished:
        before = session.generated
        plan = session.plan()
        reports = model.reports(plan)
        yield Step(before, plan, reports, session.advance(reports))


def run(prompt: list[int], wanted: GenerationSettings, model: FakeModel) -> tuple[DecodeSession, list[Step]]:
    session = new(prompt, wanted)
    return session, list(walk(session, model))


# Every decoder


@settings(max_examples=150)
@given(PROMPTS, ANY, MODELS)
def test_decided_tokens_stay_and_each_step_decides(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    for step in steps:
        for old, now in zip(step.before, step.outcome.canvas, strict=False):
            assert old in (MASK, now)
        assert len(step.outcome.canvas) >= len(step.before)
        decided = sum(token != MASK for token in step.outcome.canvas) - sum(t != MASK for t in step.before)
        added = len(step.plan.branches[step.outcome.winner].fills)
        assert decided == added + len(step.outcome.fills)
        assert decided > 0 or may_decide_nothing(wanted, step.plan)
        for decision in step.outcome.adopted + step.outcome.filled:
            assert step.outcome.canvas[decision.position - len(prompt)] == decision.token
            assert len(decision.top_logprobs) == wanted.top_logprobs
        fork = step.plan.branches[step.outcome.winner].fills
        assert tuple(decision.fill for decision in step.outcome.adopted) == fork


@settings(max_examples=100)
@given(PROMPTS, ANY, MODELS)
def test_every_token_comes_with_the_scores_of_the_pass_that_chose_it(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    decided: set[int] = set()
    for number, step in enumerate(steps):
        for source, decisions in ((number - 1, step.outcome.adopted), (number, step.outcome.filled)):
            for decision in decisions:
                report = steps[source].reports[steps[source].outcome.winner]
                at = report.positions.tolist().index(decision.position)
                assert decision.token == report.tokens[at]
                assert decision.probability == report.probabilities[at]
                assert decision.logprob == report.logprobs[at]
                assert decision.position not in decided
                decided.add(decision.position)
    if steps:
        assert len(decided) == sum(token != MASK for token in steps[-1].outcome.canvas)


@settings(max_examples=150)
@given(PROMPTS, ANY, MODELS)
def test_the_end_is_what_the_settings_say(prompt, wanted, model):
    session, steps = run(prompt, wanted, model)
    generated = session.generated
    has_eos = EOS in generated and not wanted.ignore_eos
    first = generated.index(EOS) + 1 if has_eos else len(generated)
    assert len(steps) == session.steps <= session.step_limit
    assert session.forwards == sum(len(step.plan.branches) for step in steps)
    assert len(generated) <= wanted.max_new_tokens
    assert MASK not in generated[:first]
    assert EOS not in generated[: wanted.min_tokens]
    if not (has_eos and wanted.stop_at_eos):
        assert MASK not in generated
    if not has_eos:
        assert len(generated) == wanted.max_new_tokens
    assert session.finish_reason == ("stop" if has_eos else "length")
    assert [step.outcome.finish_reason for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].outcome.finish_reason == session.finish_reason
    if wanted.stop_at_eos and has_eos:  # not a step too late
        before = steps[-1].before
        assert EOS not in before or MASK in before[: before.index(EOS)]

    answer = Answer(len(prompt), wanted, session.ends, keep_trace=True)
    for step in steps:
        answer.add(step.plan, step.outcome)
    result = answer.result(None, 1.0)
    assert result.token_ids == (generated[:first] if wanted.stop_at_eos else generated)
    assert result.token_ids == answer_ids(generated, wanted, session.ends)
    assert result.tokens == first
    assert (result.steps, result.forwards) == (session.steps, session.forwards)
    assert result.tpf == first / len(steps)
    assert [step.winner for step in result.trace] == [step.outcome.winner for step in steps]
    assert answer.text_ids == (generated[: first - 1] if has_eos else generated)


@settings(max_examples=100)
@given(PROMPTS, ANY, MODELS)
def test_a_plan_reads_only_what_was_kept(prompt, wanted, model):
    """The commit names the last step's winner, and cached spans lie in what commits have written."""
    _, steps = run(prompt, wanted, model)
    have: tuple[range, ...] = ()
    for number, step in enumerate(steps, 1):
        plan = step.plan
        assert plan.step == number
        last = steps[number - 2] if number > 1 else None
        if last is None or not last.plan.keep:
            assert plan.commit is None
        else:
            shared = last.plan.shared_keep
            assert plan.commit == Commit(number - 1, last.outcome.winner, last.plan.keep, shared)
            have = merge(have + plan.commit.spans)
        for span in plan.cached:
            assert any(set(span) <= set(other) for other in have)
        have = plan.cached
        masked = {p for p, token in enumerate(plan.canvas, plan.start) if token == MASK}
        for branch, report in zip(plan.branches, step.reports, strict=True):
            stops = [stop for stop, _ in branch.segments]
            assert stops == sorted(set(stops))
            assert stops[0] > plan.start
            assert branch.stop <= plan.start + len(plan.canvas)
            assert {position for position, _ in branch.fills} <= masked
            assert set(report.positions.tolist()) <= set(plan.scored)
        # All input lies behind or between what is cached, never on it.
        assert not any(set(span) & set(range(plan.start, plan.branches[0].stop)) for span in plan.cached) or (
            isinstance(wanted, MaskedAnswerSettings)
        )


@settings(max_examples=60)
@given(PROMPTS, ANY, MODELS, st.integers(0, 6), st.randoms(use_true_random=False))
def test_foreign_reports_change_nothing(prompt, wanted, model, skipped, random):
    session = new(prompt, wanted)
    for _ in range(skipped):
        if session.finished:
            return
        session.advance(model.reports(session.plan()))
    if session.finished:
        with pytest.raises(ProtocolError, match="finished"):
            session.plan()
        return
    with pytest.raises(ProtocolError, match="plan"):
        session.advance([])
    old = model.reports(session.plan(epoch=3))
    plan = session.plan(epoch=4)
    good = model.reports(plan)
    generated, steps = session.generated, session.steps
    nan = replace(good[-1], scores=np.full(max(1, len(good[-1].scores)), np.nan, np.float32))
    wrong: list[list[BranchReport]] = [
        old,
        [*good[:-1], replace(good[-1], step=plan.step + 1)],
        [*good[:-1], replace(good[-1], step=plan.step - 1)],
        [*good[:-1], replace(good[-1], epoch=5)],
        good[:-1],
        [*good, good[0]],
        [*good[1:], replace(good[0], branch=len(good))],
        [],
    ]
    for reports in wrong:
        with pytest.raises(ProtocolError):
            session.advance(reports)
    with pytest.raises(ScoreError, match="NaN"):
        session.advance([*good[:-1], nan])
    assert (session.generated, session.steps, session.plan(epoch=4)) == (generated, steps, plan)

    random.shuffle(good)
    outcome = session.advance(good)
    twin = new(prompt, wanted)
    for _ in range(session.steps):
        expected = twin.advance(model.reports(twin.plan()))
    assert outcome == expected
    with pytest.raises(ProtocolError):
        session.advance(good)


@settings(max_examples=50)
@given(PROMPTS, ANY, MODELS)
def test_planning_again_restamps_the_epoch_and_nothing_else(prompt, wanted, model):
    once, again = new(prompt, wanted), new(prompt, wanted)
    epoch = 0
    while not once.finished:
        plan = once.plan()
        for _ in range(3):
            epoch += 1
            assert again.plan(epoch) == replace(plan, epoch=epoch)
        assert once.advance(model.reports(plan)) == again.advance(model.reports(again.plan(epoch)))
    assert again.finished


# LoPA and D2F


@settings(max_examples=150)
@given(PROMPTS, any_blocks(), MODELS)
def test_blocks_are_cached_in_order_and_only_when_decided(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    previous = None
    for step in steps:
        plan, blocks = step.plan, step.outcome.blocks
        states = [block.state for block in blocks]
        assert states == sorted(states, key=["in_cache", "to_cache", "active"].index)
        canvas = prompt + list(step.outcome.canvas)
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert blocks[-1].stop == len(canvas)
        for block in blocks:
            masks = canvas[block.start : block.stop].count(MASK)
            assert block.masks == masks
            assert (block.state == "active") == (MASK in canvas[: block.stop])
            assert block.stop - block.start <= max(wanted.block_size, len(prompt))

        # What is written now is what the step before left to be cached, on every branch alike.
        cached = previous.plan.cached + previous.plan.keep if previous else ()
        assert plan.cached == merge(cached)
        assert plan.start == (plan.cached[0].stop if plan.cached else 0)
        waiting = [b for b in previous.outcome.blocks if b.state == "to_cache"] if previous else [blocks[0]]
        assert plan.keep == ((range(waiting[0].start, waiting[-1].stop),) if waiting else ())
        assert plan.shared_keep == (wanted.window_attention == "block_causal")
        kept = plan.keep[-1].stop if plan.keep else plan.start
        assert MASK not in plan.canvas[: kept - plan.start]
        assert plan.scored.start == kept
        assert all(position >= kept for branch in plan.branches for position, _ in branch.fills)
        for branch in plan.branches:
            ends = [b.stop for b in blocks if plan.start < b.stop <= branch.stop]
            full = wanted.window_attention == "full"
            if full or branch is plan.branches[step.outcome.winner]:
                wanted_ends = [branch.stop] if full else ends
                assert branch.segments == tuple((end, end) for end in wanted_ends)
        previous = step


@settings(max_examples=150)
@given(PROMPTS, ANY, MODELS)
def test_the_anchor_and_the_best_ranked_forks_race(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    lopa = wanted if isinstance(wanted, LookaheadSettings) else LopaSettings(num_branches=1)
    previous = None
    for step in steps:
        plan, outcome = step.plan, step.outcome
        inputs = [(tuple(plan.input_ids(branch)), branch.segments) for branch in plan.branches]
        assert len(set(inputs)) == len(inputs) <= lopa.num_branches

        # Forks: the best-ranked masked positions of the last winner, ties by position; then the anchor.
        expected: list[tuple[tuple[int, int], ...]] = []
        creations = []
        if previous is not None and lopa.num_branches > 1:
            seen = previous.reports[previous.outcome.winner]
            canvas = prompt + list(previous.outcome.canvas)
            ranked = sorted(
                (-float(s), p, int(t))
                for p, t, s in zip(
                    seen.positions.tolist(), seen.tokens.tolist(), seen.scores.tolist(), strict=True
                )
                if canvas[p] == MASK
            )
            room = lopa.num_branches - (lopa.anchor != "omit")
            expected = [((p, t),) for _, p, t in ranked[:room]]
            creations = [-s for s, _, _ in ranked[:room]]
        if lopa.anchor != "omit" or not expected:
            expected.append(())
            creations.append(1.0)
        assert [branch.fills for branch in plan.branches] == expected

        for index, report in enumerate(step.reports):
            scores = sorted(report.scores.tolist())
            if lopa.branch_confidence.startswith("bottom"):
                scores = scores[: max(1, int(len(scores) * float(lopa.branch_confidence[7:-1])))]
            own = sum(scores) / len(scores) if scores else 1.0
            alpha = lopa.creation_confidence_alpha
            mixed = alpha * creations[index] + (1 - alpha) * own
            assert math.isclose(outcome.confidences[index], mixed, abs_tol=1e-6)
        best = outcome.confidences.index(max(outcome.confidences))
        assert outcome.winner == (len(plan.branches) - 1 if lopa.anchor == "win" else best)
        previous = step


@settings(max_examples=150)
@given(PROMPTS, any_blocks(), MODELS)
def test_the_winner_is_filled_by_threshold_or_its_best_position(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    for step in steps:
        report = step.reports[step.outcome.winner]
        found = {
            p: (t, q, s)
            for p, t, q, s in zip(
                report.positions.tolist(),
                report.tokens.tolist(),
                report.probabilities.tolist(),
                report.scores.tolist(),
                strict=True,
            )
        }
        expected = []
        for block in step.outcome.blocks:
            masked = [p for p in range(block.start, block.stop) if p in found]
            above = [p for p in masked if found[p][1] > wanted.confidence_threshold]
            if not above and masked and block.complete:
                above = [min(masked, key=lambda p: (-found[p][2], p))]
            expected += [(p, found[p][0]) for p in above]
        assert list(step.outcome.fills) == expected
        assert [decision.probability for decision in step.outcome.filled] == [
            found[p][1] for p, _ in expected
        ]


def test_num_branches_1_is_d2f():
    common = {"max_new_tokens": 40, "block_size": 8, "confidence_threshold": 0.6}
    for seed in range(5):
        model = FakeModel(seed, eos_probability=0.02)
        _, lopa = run([1, 2], LopaSettings(num_branches=1, **common), model)
        _, d2f = run([1, 2], D2FSettings(**common), model)
        assert [step.outcome for step in lopa] == [step.outcome for step in d2f]


# Block by block


@settings(max_examples=80)
@given(PROMPTS, any_fast_dllm(), MODELS)
def test_a_cache_is_rebuilt_once_per_block(prompt, wanted, model):
    session, steps = run(prompt, wanted, model)
    total = len(prompt) + wanted.max_new_tokens
    begun: list[int] = []
    for step in steps:
        plan = step.plan
        first = plan.scored.start not in begun
        if first:
            begun.append(plan.scored.start)
        if first or wanted.cache == "none":
            assert (plan.start, len(plan.canvas), plan.cached) == (0, total, ())
            around = {"none": 0, "prefix": plan.scored.start, "dual": total - len(plan.scored)}
            assert sum(map(len, plan.keep)) == around[wanted.cache]
        else:
            assert sum(map(len, plan.cached)) + len(plan.canvas) == total
            assert plan.start == plan.scored.start
            assert not plan.keep
        if first and wanted.sampler == "dream" and wanted.cache != "none":
            alone = 1 + (wanted.num_branches > 1 and wanted.anchor != "win" and len(plan.scored) == 2)
            assert [position for position, _ in step.outcome.fills] == list(plan.scored[:alone])
    assert begun == list(range(len(prompt), total, wanted.block_size))[: len(begun)]
    if wanted.fill == "schedule" and session.finish_reason == "length":
        assert session.steps <= wanted.steps


@settings(max_examples=80)
@given(PROMPTS, any_block_diffusion(), MODELS)
def test_block_diffusion_caches_decided_blocks_alone(prompt, wanted, model):
    _, steps = run(prompt, wanted, model)
    size, total = wanted.block_size, len(prompt) + wanted.max_new_tokens
    for step in steps:
        plan = step.plan
        assert plan.cached in ((), (range(plan.start),))
        assert plan.start % size == 0
        ends = [min(end, total) for end in range(plan.start + size, total + size, size)]
        for branch in plan.branches:
            assert branch.segments == tuple((end, end) for end in ends[: len(branch.segments)])
        kept = [
            token
            for token, p in zip(plan.canvas, range(plan.start, total), strict=False)
            for span in plan.keep
            if p in span
        ]
        assert MASK not in kept
        assert bool(plan.keep) == plan.shared_keep
        if not wanted.fuse_store:
            assert not (plan.keep and plan.scored)
            assert len(plan.canvas) <= size or not plan.scored
        assert len({p // size for p in plan.scored}) <= 1


@settings(max_examples=60)
@given(PROMPTS, BLOCKWISE, MODELS)
def test_a_blocks_last_mask_is_not_raced_for(prompt, wanted, model):
    """The branch that fills it has none left and would win, so with lookahead no anchor is left with one."""
    _, steps = run(prompt, wanted, model)
    if wanted.num_branches == 1 or wanted.anchor == "win":
        return
    for step in steps:
        seen = step.reports[step.outcome.winner].positions.tolist()
        assert sum(step.outcome.canvas[p - len(prompt)] == MASK for p in seen) != 1


# Edges


def test_prompts_that_cannot_be_decoded_are_refused():
    wanted = LopaSettings(max_new_tokens=4)
    for prompt, match in (
        ([], "empty"),
        ([1, MASK], "prompt token 1 is the mask"),
        ([VOCABULARY.size], "0 to 49"),
        ([-1], "prompt token 0 is -1"),
    ):
        with pytest.raises(PromptError, match=match):
            new(prompt, wanted)


@pytest.mark.parametrize("kind", DECODER_SETTINGS.values())
def test_nothing_to_generate_is_finished_at_once(kind):
    session = new([1], kind(max_new_tokens=0))
    assert (session.finished, session.finish_reason, session.generated) == (True, "length", [])
    with pytest.raises(ProtocolError, match="finished"):
        session.plan()


def test_a_model_that_only_says_mask_hits_the_step_limit():
    """The published decoders hang here; ours never get such a report from a runner."""
    session = new([1], FastDllmSettings(max_new_tokens=3, block_size=3))

    def insist() -> None:
        while not session.finished:
            plan = session.plan()
            reports = FakeModel().reports(plan)
            session.advance([replace(r, tokens=np.full_like(r.tokens, MASK)) for r in reports])

    with pytest.raises(StepLimitError, match="3 steps"):
        insist()
