"""Verified lookahead gives what one branch gives, in no more steps."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.verified.evaluated_state import StateKey
from lopa_ray.decoding.verified.fill_model import FillModel
from lopa_ray.errors import ScoreError, StepLimitError
from lopa_ray.protocol.forward_costs import ForwardCosts, StepLoad
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.step_report import BranchReport
from support.context_model import ContextModel
from support.fake_model import VOCABULARY
from support.given_answers import GIVEN, session_with
from support.settings_strategies import PROMPTS
from support.verified_decode import CONTEXT_MODELS, any_verified

pytestmark = pytest.mark.medium

VERIFIED = LopaSettings(
    max_new_tokens=40, block_size=16, num_branches=8, lookahead="verified", confidence_threshold=0.8
)


COSTS = st.dictionaries(st.integers(1, 300), st.floats(0.01, 100.0), min_size=1, max_size=6)

LOADS = st.builds(StepLoad, st.builds(ForwardCosts.of, COSTS), st.integers(1, 9), st.integers(1, 3))


def steps_of(
    session: DecodeSession,
    model: ContextModel,
    *,
    restored: bool = False,
    branches: int | None = None,
    load: StepLoad | None = None,
) -> list[StepOutcome]:
    """The outcomes of a request. `restored`: every step is done by another session, from the state before it."""
    outcomes = []
    while not session.finished:
        if restored:
            state = session.export_state()
            assert session.plan(branches, load) == session.plan() and session.export_state() == state
            session = session.with_state(state, ())
        outcomes.append(session.advance(model.reports(session.plan(branches, load))))
    return outcomes


def assert_same(together: list[StepOutcome], of_one: list[StepOutcome]) -> None:
    """The same steps of the rule, in no more steps, with the same end."""
    rule_steps = [rule_step for outcome in together for rule_step in outcome.rule_steps]
    assert [rule_step.filled for rule_step in rule_steps] == [outcome.filled for outcome in of_one]
    assert len(together) <= len(of_one)
    if of_one:
        last, alone = together[-1], of_one[-1]
        assert (last.canvas, last.finish_reason) == (alone.canvas, alone.finish_reason)


@settings(max_examples=60)
@given(PROMPTS, any_verified(), CONTEXT_MODELS, st.booleans(), st.one_of(st.just({}), GIVEN), LOADS)
def test_every_decoder_takes_the_steps_of_one_branch(
    prompt: list[int],
    wanted: LookaheadSettings,
    model: ContextModel,
    restored: bool,
    tokens: dict[int, int],
    load: StepLoad,
) -> None:
    """The model's rows follow from all that they see, so they differ as soon as a branch stands for another state."""
    alone = session_with(prompt, wanted.of_one_branch(), tokens, model.vocabulary)
    verified = session_with(prompt, wanted, tokens, model.vocabulary)
    of_one = steps_of(alone, replace(model))
    assert_same(steps_of(verified, replace(model), restored=restored, load=load), of_one)


RULES = {
    "full attention": VERIFIED,
    "block-causal": VERIFIED.replace(window_attention="block_causal", block_size=8),
    "block diffusion": BlockDiffusionSettings(
        max_new_tokens=40, block_size=8, num_branches=8, lookahead="verified", confidence_threshold=0.8
    ),
    "a schedule": VanillaSettings(max_new_tokens=40, steps=20, num_branches=8, lookahead="verified"),
    "random positions": VanillaSettings(
        max_new_tokens=40, steps=20, remasking="random", num_branches=8, lookahead="verified"
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_drafts_save_steps_where_the_model_keeps_its_mind(name: str) -> None:
    wanted = RULES[name]
    saved = total = 0
    for seed in range(5):
        model = ContextModel(seed=seed, stability=1.0)
        of_one = steps_of(new_session([1, 2], wanted.of_one_branch(), VOCABULARY), replace(model))
        together = steps_of(new_session([1, 2], wanted, VOCABULARY), replace(model))
        assert_same(together, of_one)
        saved, total = saved + len(of_one) - len(together), total + len(of_one)
    assert saved > total / 5


@pytest.mark.parametrize("shifted", [False, True])
def test_drafts_follow_a_schedule_as_far_as_there_are_branches(shifted: bool) -> None:
    """Dream's fills nothing in some calls, and several positions in others."""
    vocabulary = replace(VOCABULARY, shifted=shifted)
    wanted = VanillaSettings(
        max_new_tokens=40, block_size=20, steps=30, num_branches=8, lookahead="verified", stop_at_eos=False
    )
    for seed in range(3):
        model = ContextModel(seed=seed, stability=1.0, vocabulary=vocabulary)
        of_one = steps_of(new_session([1, 2], wanted.of_one_branch(), vocabulary), replace(model))
        together = steps_of(new_session([1, 2], wanted, vocabulary), replace(model))
        assert_same(together, of_one)
        assert len(together) <= len(of_one) / 2


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_the_call_that_fills_a_blocks_cache_may_be_a_draft_before_the_block(cache: str) -> None:
    wanted = FastDllmSettings(
        max_new_tokens=32, block_size=8, cache=cache, num_branches=6, lookahead="verified", stop_at_eos=False
    ).replace(confidence_threshold=0.8)
    ahead = 0
    for seed in range(4):
        model = ContextModel(seed=seed, stability=1.0)
        of_one = steps_of(new_session([1, 2], wanted.of_one_branch(), VOCABULARY), replace(model))
        session, together, filling = new_session([1, 2], wanted, VOCABULARY), [], replace(model)
        while not session.finished:
            plan = session.plan()
            together.append(session.advance(filling.reports(plan)))
            ahead += together[-1].commit is not None and plan.branches[0].start > plan.start == 0
        assert_same(together, of_one)
    assert ahead > 0


def test_a_smaller_budget_changes_steps_and_no_token() -> None:
    model = ContextModel(stability=1.0)
    of_one = steps_of(new_session([1, 2], VERIFIED.of_one_branch(), VOCABULARY), replace(model))
    lengths = []
    for branches in (1, 2, 4, 8):
        together = steps_of(new_session([1, 2], VERIFIED, VOCABULARY), replace(model), branches=branches)
        assert_same(together, of_one)
        lengths.append(len(together))
    assert lengths[0] == len(of_one) and lengths == sorted(lengths, reverse=True) and lengths[-1] < lengths[0]


def forwards_of(wanted: LookaheadSettings, load: StepLoad | None) -> int:
    session = new_session([1, 2], wanted, VOCABULARY)
    steps_of(session, ContextModel(stability=1.0), load=load)
    return session.forwards


def test_auto_evaluates_the_drafts_that_are_worth_their_cost() -> None:
    fixed, auto = VERIFIED.replace(num_branches=16), VERIFIED.replace(num_branches="auto")
    of_one = forwards_of(VERIFIED.of_one_branch(), None)
    free, dear = (ForwardCosts.of({1: 1.0, 300: last}) for last in (1.0, 1e9))
    assert forwards_of(auto, StepLoad(free)) == forwards_of(fixed, None) > forwards_of(auto, None)
    assert forwards_of(auto, None) > forwards_of(auto, StepLoad(dear)) == of_one
    assert forwards_of(fixed, StepLoad(dear)) == forwards_of(fixed, None)


def test_no_draft_is_looked_for_where_a_typical_one_is_not_worth_a_branch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auto = VERIFIED.replace(num_branches="auto")
    rows = new_session([1, 2], auto, VOCABULARY).plan().max_branch_rows
    monkeypatch.setattr(FillModel, "fill_sets", lambda *_: pytest.fail("a draft was looked for"))
    forwards_of(auto, StepLoad(ForwardCosts.of({0: 1.0, rows: 10.0, 2 * rows: 19.0})))
    with pytest.raises(pytest.fail.Exception, match="a draft was looked for"):
        forwards_of(auto, StepLoad(ForwardCosts.of({0: 3.0, rows: 10.0, 2 * rows: 17.0})))


def test_costs_decide_nothing_where_tokens_would_depend_on_them() -> None:
    relaxed = VERIFIED.replace(num_branches="auto", acceptance=0.3)
    assert not new_session([1, 2], relaxed, VOCABULARY).weighs_costs
    dear = StepLoad(ForwardCosts.of({1: 1.0, 300: 1e9}))
    assert forwards_of(relaxed, dear) == forwards_of(relaxed, None)


IN_NO_REPORT = {"step", "canvas", "commit", "stage_shared", "to_stage"}
"""What a plan of one branch has beside what its report depends on. Its canvas is prompt and answer."""


def test_whatever_a_report_depends_on_is_in_the_key_of_its_state() -> None:
    plan = new_session([1, 2], VERIFIED.of_one_branch(), VOCABULARY).plan()
    key = StateKey.of([3], plan)
    assert key == StateKey.of([3], replace(plan)) != StateKey.of([4], plan)
    branch, other = plan.branches[0], object()
    changed = {field.name: replace(plan, **{field.name: other}) for field in fields(plan)}
    del changed["branches"]
    for field in fields(branch):
        changed[field.name] = replace(plan, branches=(replace(branch, **{field.name: other}),))
    same = {name for name, plan in changed.items() if StateKey.of([3], plan) == key}
    assert same == IN_NO_REPORT


def test_answers_under_a_constraint_are_those_of_one_branch() -> None:
    texts = [*(bytes([97 + token % 4]) for token in range(48)), b"", b""]
    automaton = ByteAutomaton.from_regex("(ab?c+d?){2,9}")
    constraint = build_constraint(automaton, texts, VOCABULARY.eos_token_id)
    for seed in range(10):
        wanted = VERIFIED.replace(guided_regex="(ab?c+d?){2,9}", block_size=5)
        model = ContextModel(seed=seed, stability=1.0)
        alone = new_session([1], wanted.of_one_branch(), VOCABULARY, constraint)
        verified = new_session([1], wanted, VOCABULARY, constraint)
        assert_same(steps_of(verified, replace(model)), steps_of(alone, replace(model)))


# Relaxed acceptance


@settings(max_examples=25)
@given(CONTEXT_MODELS, st.sampled_from([0.0, 0.3, 0.6]), st.sampled_from([None, 1.0]))
def test_relaxed_acceptance_fills_the_rules_tokens_and_probable_choices_of_a_report(
    model: ContextModel, acceptance: float, settled: float | None
) -> None:
    session = new_session([1, 2], VERIFIED.replace(acceptance=acceptance, settled=settled), model.vocabulary)
    while not session.finished:
        plan = session.plan()
        reports = model.reports(plan)
        outcome = session.advance(reports)
        known = [_choices(report) for report in reports]
        for rule_step in outcome.rule_steps:
            if rule_step.branch is None:
                continue
            for decision in rule_step.filled:
                assert known[rule_step.branch][decision.position] == (decision.token, decision.probability)
        # What follows on a step of the rule is a branch with all that it has filled.
        filled: set[tuple[int, int]] = set()
        for before, after in zip(outcome.rule_steps, outcome.rule_steps[1:], strict=False):
            filled |= {decision.fill for decision in before.filled}
            if after.branch is not None:
                assert set(plan.branches[after.branch].fills) == filled


def _choices(report: BranchReport) -> dict[int, tuple[int, float]]:
    columns = (report.positions.tolist(), report.tokens.tolist(), report.probabilities.tolist())
    return {position: (token, probability) for position, token, probability in zip(*columns, strict=True)}


def test_relaxed_acceptance_takes_no_more_steps() -> None:
    steps = {"exact": 0, "relaxed": 0}
    for seed in range(4):
        for name, acceptance in (("exact", "exact"), ("relaxed", 0.3)):
            session = new_session([1, 2], VERIFIED.replace(acceptance=acceptance), VOCABULARY)
            steps[name] += len(steps_of(session, ContextModel(seed=seed, stability=1.0)))
    assert steps["relaxed"] < steps["exact"]


# Ends


def test_a_draft_without_scores_is_no_draft_and_an_anchor_without_scores_is_an_error() -> None:
    session, model = new_session([1, 2], VERIFIED, VOCABULARY), ContextModel(stability=1.0)
    while len(session.plan().branches) == 1:
        session.advance(model.reports(session.plan()))
    reports = model.reports(session.plan())
    broken = [replace(report, scores=report.scores * np.nan) for report in reports]
    outcome = session.advance([reports[0], *broken[1:]])
    assert len(outcome.rule_steps) == 1
    with pytest.raises(ScoreError, match="NaN"):
        session.advance([replace(r, scores=r.scores * np.nan) for r in model.reports(session.plan())])


def test_the_step_limit_is_that_of_one_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LopaSession, "step_limit", 3)
    model = ContextModel(stability=1.0)
    alone = new_session([1, 2], VERIFIED.of_one_branch(), VOCABULARY)
    first = replace(model)
    outcomes = [alone.advance(first.reports(alone.plan())) for _ in range(3)]
    decided = sum(len(outcome.filled) for outcome in outcomes)
    for wanted in (VERIFIED, VERIFIED.of_one_branch()):
        session = new_session([1, 2], wanted, VOCABULARY)
        with pytest.raises(StepLimitError, match="3 steps did not finish 40 tokens"):
            steps_of(session, replace(model))
        assert sum(token != VOCABULARY.mask_token_id for token in session.generated) == decided
