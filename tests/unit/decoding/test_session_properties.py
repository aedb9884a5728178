"""What every decode session keeps to, whatever the settings and whatever the model says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.vanilla import MaskedAnswerSettings
from lopa_ray.decoding.given_tokens import final_part
from lopa_ray.decoding.result import ResultBuilder
from lopa_ray.errors import PromptError, ProtocolError, ScoreError, StepLimitError
from lopa_ray.execution.kv_cache import merge_spans
from lopa_ray.protocol.plan import Branch, Commit
from lopa_ray.protocol.scoring import ChooseTokens, Drafted
from lopa_ray.protocol.step_report import BranchReport
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import create_session, decode, may_decide_nothing
from support.settings_strategies import (
    ANY_SETTINGS,
    EOS,
    FAKE_MODELS,
    MASK,
    OWN_STRATEGIES,
    PROMPTS,
    settings_by_field,
)

pytestmark = pytest.mark.medium


@settings(max_examples=80)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_decided_tokens_stay_and_each_step_decides(prompt, wanted, model):
    session, steps = decode(prompt, wanted, model)
    editable = range(0)
    for step in steps:
        canvas = dict(enumerate(step.outcome.canvas, len(prompt)))
        before = dict.fromkeys(canvas, MASK) | dict(enumerate(step.before, len(prompt)))
        for position, old in before.items():
            assert old in (MASK, canvas[position]) or position in editable
        decisions = step.outcome.adopted + step.outcome.filled
        decided = {position for position, token in before.items() if token == MASK != canvas[position]}
        assert decided <= {decision.position for decision in decisions} <= decided | set(editable)
        assert decided or may_decide_nothing(session, step.plan)
        assert {decision.position: decision.token for decision in decisions}.items() <= canvas.items()
        assert all(len(decision.top_logprobs) == wanted.top_logprobs for decision in decisions)
        assert editable or len(decisions) == len(decided)
        editable = step.outcome.editable
        is_guess = getattr(wanted, "drafting", "") == "joint" or verifies_drafts(step.plan)
        fork = () if is_guess else step.plan.branches[step.outcome.winner].fills
        assert tuple(decision.fill for decision in step.outcome.adopted) == fork


def verifies_drafts(plan):
    return isinstance(getattr(plan.branches[0].scoring, "memory", None), Drafted)


@settings(max_examples=60)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_every_token_comes_with_the_scores_of_the_pass_that_chose_it(prompt, wanted, model):
    _, steps = decode(prompt, wanted, model)
    decided: set[int] = set()
    for number, step in enumerate(steps):
        editable = steps[number - 1].outcome.editable if number else range(0)
        for source, decisions in ((number - 1, step.outcome.adopted), (number, step.outcome.filled)):
            for decision in decisions if not verifies_drafts(step.plan) else ():
                if decision.token == MASK:  # masked again
                    decided.discard(decision.position)
                    continue
                report = steps[source].reports[steps[source].outcome.winner]
                at = report.positions.tolist().index(decision.position)
                if decision.token != report.tokens[at]:  # where that would repeat a loop
                    assert wanted.decoder == "indel" and decision.token in report.top_tokens[at]
                else:
                    assert decision.probability == report.probabilities[at]
                    assert decision.logprob == report.logprobs[at]
                assert decision.position not in decided or decision.position in editable
                decided.add(decision.position)
        if verifies_drafts(step.plan):  # of a pass before
            decided.update(decision.position for decision in step.outcome.filled)
    if steps:
        assert len(decided) == sum(token != MASK for token in steps[-1].outcome.canvas)


@settings(max_examples=40)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_planning_leaves_the_state_as_it_is(prompt, wanted, model):
    """A journal is sent it while the next step is on its way, and that step may never be seen to end."""
    _, steps = decode(prompt, wanted, model)
    session = create_session(prompt, wanted)
    for step in steps:
        before = session.export_state()
        assert session.plan() == step.plan
        assert session.export_state() == before
        assert create_session(prompt, wanted).with_state(before, ()).plan() == step.plan
        session.advance(step.reports)


@settings(max_examples=80)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_the_end_is_what_the_settings_say(prompt, wanted, model):
    session, steps = decode(prompt, wanted, model)
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
        before = final_part(
            steps[-1].before, steps[-2].outcome.editable if steps[1:] else range(0), len(prompt)
        )
        assert EOS not in before or MASK in before[: before.index(EOS)]

    builder = ResultBuilder(session, with_trace=True)
    for step in steps:
        builder.add_step(step.plan, step.outcome)
    result = builder.build(None, 1.0)
    assert result.token_ids == (generated[:first] if wanted.stop_at_eos else generated)
    assert result.tokens == first
    assert (result.steps, result.forwards) == (session.steps, session.forwards)
    assert result.tpf == first / len(steps)
    assert [step.winner for step in result.trace] == [step.outcome.winner for step in steps]
    assert builder.text_token_ids == (generated[: first - 1] if has_eos else generated)


def _verifies_edits(branch: Branch) -> bool:
    """Drafts are verified on the canvas with the edits of the call that drafted."""
    return isinstance(branch.scoring, ChooseTokens) and isinstance(branch.scoring.memory, Drafted)


@settings(max_examples=60)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS)
def test_a_plan_reads_only_what_was_kept(prompt, wanted, model):
    """The commit names the last step's winner, and cached spans lie in what commits have written."""
    _, steps = decode(prompt, wanted, model)
    have: tuple[range, ...] = ()
    for number, step in enumerate(steps, 1):
        plan = step.plan
        assert plan.step == number
        last = steps[number - 2] if number > 1 else None
        if last is None or not last.plan.branches[0].to_stage:
            assert plan.commit is None
        else:
            shared = last.plan.stage_shared
            winner = last.outcome.winner
            assert plan.commit == Commit(number - 1, winner, last.plan.branches[winner].to_stage, shared)
            have = merge_spans(have + plan.commit.spans)
        for span in plan.cached:
            assert any(set(span) <= set(other) for other in have)
        have = plan.cached
        masked = {p for p, token in enumerate(plan.canvas, plan.start) if token == MASK}
        for branch, report in zip(plan.branches, step.reports, strict=True):
            stops = [stop for stop, _ in branch.segments]
            assert stops == sorted(set(stops))
            assert stops[0] > plan.start
            assert branch.stop <= plan.start + len(plan.canvas)
            if not _verifies_edits(branch):
                assert {position for position, _ in branch.fills} <= masked
            assert set(report.positions.tolist()) <= set(branch.scored)
        # All input lies behind or between what is cached, never on it.
        assert not any(set(span) & set(range(plan.start, plan.branches[0].stop)) for span in plan.cached) or (
            isinstance(wanted, MaskedAnswerSettings)
        )


@settings(max_examples=60)
@given(PROMPTS, ANY_SETTINGS, FAKE_MODELS, st.integers(0, 6), st.randoms(use_true_random=False))
def test_foreign_reports_change_nothing(prompt, wanted, model, skipped, random):
    session = create_session(prompt, wanted)
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
    plan = session.plan()
    good = model.reports(plan)
    generated, steps = session.generated, session.steps
    nan = replace(good[-1], scores=np.full(max(1, len(good[-1].scores)), np.nan, np.float32))
    wrong: list[list[BranchReport]] = [
        [replace(report, step=plan.step - 1) for report in good],
        [*good[:-1], replace(good[-1], step=plan.step + 1)],
        [*good[:-1], replace(good[-1], step=plan.step - 1)],
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
    assert (session.generated, session.steps, session.plan()) == (generated, steps, plan)

    random.shuffle(good)
    outcome = session.advance(good)
    twin = create_session(prompt, wanted)
    for _ in range(session.steps):
        expected = twin.advance(model.reports(twin.plan()))
    assert outcome == expected
    with pytest.raises(ProtocolError):
        session.advance(good)


def test_prompts_that_cannot_be_decoded_are_refused():
    wanted = LopaSettings(max_new_tokens=4)
    for prompt, match in (
        ([], "empty"),
        ([1, MASK], "prompt token 1 is the mask"),
        ([VOCABULARY.size], "0 to 49"),
        ([-1], "prompt token 0 is -1"),
    ):
        with pytest.raises(PromptError, match=match):
            create_session(prompt, wanted)


@pytest.mark.parametrize("name", OWN_STRATEGIES)
@settings(max_examples=10)
@given(st.data())
def test_settings_drawn_by_their_types_decode(name, data):
    """Those that the strategies of these decoders leave out."""
    wanted = data.draw(settings_by_field(name))
    session, _ = decode(data.draw(PROMPTS), wanted, data.draw(FAKE_MODELS))
    assert session.finished and wanted.decoder == name


@pytest.mark.parametrize("name", DECODERS)
def test_nothing_to_generate_is_finished_at_once(name):
    decoder = DECODERS[name]
    vocabulary = replace(VOCABULARY, canvas_length=0 if decoder.fills_masks else 4)
    session = decoder.session([1], decoder.settings(max_new_tokens=0), vocabulary)
    assert (session.finished, session.finish_reason, session.generated) == (True, "length", [])
    with pytest.raises(ProtocolError, match="finished"):
        session.plan()


def test_a_model_that_only_says_mask_hits_the_step_limit():
    """The published decoders hang here; ours never get such a report from a runner."""
    session = create_session([1], FastDllmSettings(max_new_tokens=3, block_size=3))

    def insist() -> None:
        while not session.finished:
            plan = session.plan()
            reports = FakeModel().reports(plan)
            session.advance([replace(r, tokens=np.full_like(r.tokens, MASK)) for r in reports])

    with pytest.raises(StepLimitError, match="3 steps"):
        insist()
