"""What LoPA and D2F keep to on their canvas of blocks, whatever the settings and the model."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.decoders.self_verification import SelfVerificationSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.execution.kv_cache import merge_spans
from lopa_ray.protocol.plan import Plan
from support.fake_model import FakeModel
from support.fake_session import decode
from support.settings_strategies import ANY_SETTINGS, FAKE_MODELS, MASK, PROMPTS, any_lopa_or_d2f

pytestmark = pytest.mark.medium


@settings(max_examples=60)
@given(PROMPTS, any_lopa_or_d2f(), FAKE_MODELS)
def test_blocks_are_cached_in_order_and_only_when_decided(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
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
        cached = previous.plan.cached + previous.plan.branches[0].to_stage if previous else ()
        assert plan.cached == merge_spans(cached)
        assert plan.start == (plan.cached[0].stop if plan.cached else 0)
        waiting = [b for b in previous.outcome.blocks if b.state == "to_cache"] if previous else blocks[:1]
        waiting = [
            b for b in waiting if b.stop
        ]  # a prompt that is shorter than a block may have none of its own
        assert plan.branches[0].to_stage == ((range(waiting[0].start, waiting[-1].stop),) if waiting else ())
        assert plan.stage_shared == (wanted.window_attention != "full")
        staged_end = plan.branches[0].to_stage[-1].stop if plan.branches[0].to_stage else plan.start
        assert MASK not in plan.canvas[: staged_end - plan.start]
        assert plan.branches[0].scored.start == staged_end
        assert all(position >= staged_end for branch in plan.branches for position, _ in branch.fills)
        for branch in plan.branches:
            ends = [b.stop for b in blocks if plan.start < b.stop <= branch.stop]
            if wanted.window_attention == "tiled" and plan.start == 0:  # the prompt is blocks as well
                ends = [*range(wanted.block_size, blocks[0].stop, wanted.block_size), *ends]
            full = wanted.window_attention == "full"
            if full or branch is plan.branches[step.outcome.winner]:
                wanted_ends = [branch.stop] if full else ends
                assert branch.segments == tuple((end, end) for end in wanted_ends)
        previous = step


def _stages_masks(plan: Plan) -> bool:
    """Whether a call leaves K/V of masked positions for later calls; such a call has the anchor alone."""
    return any(
        plan.canvas[position - plan.start] == MASK for span in plan.branches[0].to_stage for position in span
    )


@settings(max_examples=80)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_branches_are_the_best_ranked_forks_and_the_anchor(prompt, wanted, model):
    # There branches are guesses, or verify drafts.
    assume(getattr(wanted, "drafting", "") != "joint" and not isinstance(wanted, SelfVerificationSettings))
    _, steps = decode(prompt, wanted, model)
    lopa = wanted if isinstance(wanted, LookaheadSettings) else LopaSettings(num_branches=1)
    previous = None
    for step in steps:
        plan, outcome = step.plan, step.outcome
        inputs = [(tuple(plan.input_ids(branch)), branch.segments) for branch in plan.branches]
        assert len(set(inputs)) == len(inputs) <= lopa.num_branches

        # Forks: the best-ranked masked positions of the last winner, ties by position; then the anchor.
        expected: list[tuple[tuple[int, int], ...]] = []
        creations = []
        if previous is not None and lopa.num_branches > 1 and not _stages_masks(plan):
            seen = previous.reports[previous.outcome.winner]
            canvas = prompt + list(previous.outcome.canvas)
            ranked = sorted(
                (-float(s), p, int(t))
                for p, t, s in zip(
                    seen.positions.tolist(), seen.tokens.tolist(), seen.scores.tolist(), strict=True
                )
                if canvas[p] == MASK
            )
            room = lopa.num_branches - 1
            size = min(lopa.tokens_per_fork, len(ranked))
            # Python sorts stably, so equal means keep the order of the combinations.
            groups = (
                sorted(combinations(ranked, size), key=lambda group: sum(s for s, _, _ in group) / size)
                if size
                else []
            )
            expected = [tuple((p, t) for _, p, t in group) for group in groups[:room]]
            creations = [-sum(s for s, _, _ in group) / size for group in groups[:room]]
        expected.append(())
        creations.append(1.0)
        assert [branch.fills for branch in plan.branches] == expected

        for index, report in enumerate(step.reports):
            ids = [*plan.input_ids(plan.branches[index]), MASK]  # behind the last row
            # Drafts stand where the canvas is masked.
            drafts = isinstance(wanted, SelfSpeculationSettings)
            of_masks = [drafts or ids[p - plan.start] == MASK for p in report.positions.tolist()]
            scores = sorted(report.scores[np.array(of_masks, bool)].tolist())
            if lopa.branch_confidence.startswith("bottom"):
                scores = scores[: max(1, int(len(scores) * float(lopa.branch_confidence[7:-1])))]
            own = sum(scores) / len(scores) if scores else 1.0
            alpha = lopa.creation_confidence_alpha
            mixed = alpha * creations[index] + (1 - alpha) * own
            assert math.isclose(outcome.confidences[index], mixed, abs_tol=1e-6)
        assert outcome.winner == outcome.confidences.index(max(outcome.confidences))
        previous = step


@settings(max_examples=60)
@given(PROMPTS, any_lopa_or_d2f(), FAKE_MODELS)
def test_the_winner_is_filled_by_threshold_or_its_best_position(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    for step in steps:
        report = step.reports[step.outcome.winner]
        by_position = {
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
            masked = [p for p in range(block.start, block.stop) if p in by_position]
            above = [p for p in masked if by_position[p][1] > wanted.confidence_threshold]
            if not above and masked and block.complete:
                above = [min(masked, key=lambda p: (-by_position[p][2], p))]
            expected += [(p, by_position[p][0]) for p in above]
        left = sorted(by_position.keys() - dict(expected))
        forks = isinstance(wanted, LookaheadSettings) and wanted.num_branches > 1
        if forks and wanted.window_attention == "tiled" and len(left) == 1:
            expected += [(p, by_position[p][0]) for p in left]
        assert list(step.outcome.fills) == expected
        assert [decision.probability for decision in step.outcome.filled] == [
            by_position[p][1] for p, _ in expected
        ]


def test_num_branches_1_is_d2f():
    common = {"max_new_tokens": 40, "block_size": 8, "confidence_threshold": 0.6}
    for seed in range(5):
        model = FakeModel(seed, eos_probability=0.02)
        _, lopa = decode([1, 2], LopaSettings(num_branches=1, **common), model)
        _, d2f = decode([1, 2], D2FSettings(**common), model)
        assert [step.outcome for step in lopa] == [step.outcome for step in d2f]
