"""What every decoder does with tokens of the answer that the request gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS, new_session, parse_decoder_settings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.given_tokens import GivenTokens, final_part
from lopa_ray.decoding.result import ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from lopa_ray.scheduling.journal import Journal
from support.context_model import ContextModel
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import SessionStep, may_decide_nothing
from support.given_answers import GIVEN, session_with
from support.settings_strategies import (
    EOS,
    FAKE_MODELS,
    MASK,
    PROMPTS,
    any_settings,
    any_vanilla,
)

ANY_SETTINGS = {
    name: any_settings(name)
    for name, decoder in DECODERS.items()
    if decoder.takes("given_parts") and decoder.fills_masks
}

EVERY_DECODER = pytest.mark.parametrize("decoder", ANY_SETTINGS)


@st.composite
def requests(draw: st.DrawFn, decoder: str) -> tuple[DecodeSession, FakeModel]:
    """A request with given tokens, and its model."""
    prompt, wanted, tokens = draw(PROMPTS), draw(ANY_SETTINGS[decoder]), draw(GIVEN)
    return session_with(prompt, wanted, tokens), draw(FAKE_MODELS)


def steps_of(session: DecodeSession, model: FakeModel) -> Iterator[SessionStep]:
    while not session.finished:
        before = session.generated
        plan = session.plan()
        reports = model.reports(plan)
        yield SessionStep(before, plan, reports, session.advance(reports))


@pytest.mark.medium
@EVERY_DECODER
@settings(max_examples=25)
@given(st.data())
def test_given_tokens_are_there_at_each_step(decoder, data):
    session, model = data.draw(requests(decoder))
    prompt = session.prompt
    first, end, shown = len(prompt), session.given.end, session.given.tokens
    editable = range(0)
    for number, step in enumerate(steps_of(session, model)):
        canvas = step.outcome.canvas
        assert min(len(step.before), len(canvas)) >= end
        for answer in (step.before, canvas):
            assert shown.items() <= dict(enumerate(answer)).items()
        # What the model sees, but for what is cached: given tokens, on every branch.
        for branch in step.plan.branches:
            ids = dict(enumerate(step.plan.input_ids(branch), step.plan.start - first))
            assert all(ids.get(at, token) == token for at, token in shown.items())
            reads_all = decoder in ("lopa", "multi_block", "vanilla") or (
                not number and decoder == "fast_dllm"
            )
            assert branch.stop >= first + end or not reads_all
            assert not {position - first for position, _ in branch.fills} & shown.keys()
        decisions = step.outcome.adopted + step.outcome.filled
        assert not {decision.position - first for decision in decisions} & shown.keys()
        decided = {at for at, (a, b) in enumerate(zip(step.before, canvas, strict=False)) if a == MASK != b}
        decided |= {at for at in range(len(step.before), len(canvas)) if canvas[at] != MASK}
        positions = {decision.position - first for decision in decisions}
        may_change = {position - first for position in editable}
        assert decided <= positions <= decided | may_change
        assert decided or may_decide_nothing(session, step.plan)
        editable = step.outcome.editable


@pytest.mark.medium
@EVERY_DECODER
@settings(max_examples=25)
@given(st.data())
def test_ends_counts_and_results(decoder, data):
    session, model = data.draw(requests(decoder))
    prompt, wanted = session.prompt, session.settings
    steps = list(steps_of(session, model))
    answer, shown = session.generated, session.given
    assert len(steps) <= session.step_limit and len(answer) >= shown.end
    ends = set() if wanted.ignore_eos else {EOS}
    text, counted, has_ended, last_has_ended = [], 0, False, False
    for at, token in enumerate(answer):
        if at in shown.tokens:
            has_ended = False
            text.append(token)
            continue
        if not has_ended:
            assert token != MASK
            counted += 1
            has_ended = last_has_ended = token in ends
            if not has_ended:
                text.append(token)
        elif not wanted.stop_at_eos or at < shown.end:
            assert token != MASK
    assert session.finish_reason == ("stop" if last_has_ended else "length")

    builder = ResultBuilder(session, with_trace=True)
    for step in steps:
        builder.add_step(step.plan, step.outcome)
    result = builder.build(None, 1.0)
    assert (result.tokens, result.tpf) == (counted, counted / len(steps))
    assert result.prompt_tokens == len(prompt) + len(shown)
    assert builder.text_token_ids == text
    in_tail = has_ended and shown.end < len(answer)
    assert result.token_ids[: len(text) + in_tail] == text + [EOS] * in_tail
    if wanted.stop_at_eos:
        assert len(result.token_ids) == len(text) + in_tail


@pytest.mark.medium
@EVERY_DECODER
@settings(max_examples=25)
@given(st.data())
def test_a_resumed_journal_has_the_same_tokens(decoder, data):
    session, model = data.draw(requests(decoder))
    journal = Journal(session.with_state(session.export_state(), ()))
    for step in steps_of(session, model):
        resumed = journal.restored_session()
        assert (resumed.generated, resumed.plan()) == (step.before, step.plan)
        assert resumed.advance(step.reports) == step.outcome
        journal.record(step.plan, step.outcome, session.export_state())


@st.composite
def beginnings(draw: st.DrawFn) -> tuple[GenerationSettings, dict[int, int]]:
    """Settings of decoders to which a given beginning of the answer is a longer prompt."""
    kind = draw(st.sampled_from(["vanilla", "block_diffusion", "multi_block", "lopa"]))
    length = draw(st.integers(2, 30))
    common = {
        "max_new_tokens": length,
        "block_size": draw(st.integers(1, 9)),
        "num_branches": draw(st.integers(1, 4)),
    }
    if kind == "vanilla":
        del common["block_size"]
    if kind == "lopa":
        common |= {"window_attention": "tiled", "block_add_threshold": 1.0}
    wanted = DECODERS[kind].settings(**common)
    count = draw(st.integers(1, length - 1))
    return wanted, {at: draw(st.integers(0, EOS - 1)) for at in range(count)}


@pytest.mark.medium
@settings(max_examples=40)
@given(
    PROMPTS,
    beginnings(),
    st.builds(ContextModel, seed=st.integers(0, 99), eos_probability=st.sampled_from([0.0, 0.1])),
)
def test_a_given_beginning_decodes_as_a_longer_prompt(prompt, request, model):
    wanted, tokens = request
    longer = prompt + list(tokens.values())
    rest = wanted.replace(max_new_tokens=wanted.max_new_tokens - len(tokens))
    together = list(steps_of(session_with(prompt, wanted, tokens), replace(model)))
    apart = list(steps_of(new_session(longer, rest, VOCABULARY), replace(model)))
    assert [step.outcome.canvas[len(tokens) :] for step in together] == [
        step.outcome.canvas for step in apart
    ]
    assert together[0].reports[0].tokens.tolist() == apart[0].reports[0].tokens.tolist()


def test_an_end_in_a_hole_ends_the_hole_alone():
    """EOS at its second position: the third is no part of the answer, the given text and the rest go on."""
    wanted = VanillaSettings(max_new_tokens=8)
    session = new_session([1], wanted, VOCABULARY, given=GivenTokens({3: 7, 4: 8}))

    class EndsAtOffset1(FakeModel):
        def report(self, plan, branch):
            report = super().report(plan, branch)
            report.tokens[:] = [EOS if p in (2, 7) else 5 for p in report.positions.tolist()]
            report.probabilities[:] = report.scores[:] = [
                0.9 if p in (1, 2) else 0.5 - p / 100 for p in report.positions.tolist()
            ]
            return report

    canvases = [list(step.outcome.canvas) for step in steps_of(session, EndsAtOffset1())]
    assert [5, MASK, MASK, 7, 8, MASK, MASK, MASK] in canvases
    assert [5, EOS, EOS, 7, 8, MASK, MASK, MASK] in canvases  # one step: an end, and what it leaves out
    assert canvases[-1] == [5, EOS, EOS, 7, 8, 5, EOS, MASK]
    assert session.finish_reason == "stop"
    builder = ResultBuilder(session)
    builder.canvas, builder.finish_reason = tuple(canvases[-1]), "stop"
    result = builder.build(None, 1.0)
    assert (result.token_ids, result.tokens) == ([5, 7, 8, 5, EOS], 4)
    assert builder.text_token_ids == [5, 7, 8, 5]


def test_a_given_end_stands_at_the_end_of_the_answer():
    session = new_session(
        [1], VanillaSettings(max_new_tokens=6), VOCABULARY, given=GivenTokens({3: 7, 4: EOS, 5: EOS})
    )
    *_, last = steps_of(session, FakeModel())
    builder = ResultBuilder(session)
    builder.add_step(last.plan, last.outcome)
    result = builder.build(None, 1.0)
    assert result.token_ids[3:] == [7, EOS] and (result.tokens, result.finish_reason) == (3, "length")


REFUSED = {
    "mask": ({"given_parts": [{"at": 2, "token_ids": [MASK]}]}, "given_parts", "mask token"),
    "no token": ({"given_parts": [{"at": 2, "token_ids": [99]}]}, "given_parts", "0 to 49"),
    "an end": ({"given_parts": [{"at": 2, "token_ids": [EOS]}]}, "given_parts", "ends an answer"),
    "overlap": (
        {"given_parts": [{"at": 2, "token_ids": [1, 2]}, {"at": 3, "token_ids": [1]}]},
        "given_parts",
        "part 1 begins at position 3",
    ),
    "too long": ({"given_parts": [{"at": 9, "token_ids": [1, 2]}]}, "given_parts", "max_new_tokens is 10"),
    "no hole": ({"given_parts": [{"token_ids": list(range(10))}]}, "given_parts", "leaves no hole"),
    "text without a tokenizer": ({"given_parts": [{"text": "x"}]}, "given_parts", "no tokenizer"),
    "both": ({"given_parts": [{"text": "x"}], "suffix": "x"}, "suffix", "leave one of them out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_given_is_refused_by_name(name):
    values, setting, message = REFUSED[name]
    with pytest.raises(SettingsError, match=message) as caught:
        new_session([1], parse_decoder_settings({"max_new_tokens": 10, **values}), VOCABULARY)
    assert caught.value.setting == setting and str(caught.value).startswith(setting)


BEHIND_A_HOLE = {
    "block_diffusion": BlockDiffusionSettings(max_new_tokens=16, block_size=4),
    "lopa, block-causal": LopaSettings(max_new_tokens=16, block_size=4, window_attention="block_causal"),
    "lopa, from position 0": LopaSettings(max_new_tokens=16, block_size=4, window_attention="tiled"),
    "nemotron": NemotronSettings(max_new_tokens=16, block_size=4, causal_context=False),
}


@pytest.mark.parametrize("name", BEHIND_A_HOLE)
def test_block_causal_decoders_take_what_the_hole_sees(name):
    wanted = BEHIND_A_HOLE[name]
    session = new_session([1, 2, 3, 4], wanted, VOCABULARY, given=GivenTokens({0: 9, 3: 7}))
    assert session.generated[:4] == [9, MASK, MASK, 7]
    for tokens in ({4: 7}, {0: 9, 3: 7, 4: 8}):
        with pytest.raises(SettingsError, match="sees nothing from position 4 on") as caught:
            new_session([1, 2, 3, 4], wanted, VOCABULARY, given=GivenTokens(tokens))
        assert caught.value.setting == "given_parts"


def test_a_seed_of_a_causal_pass_sees_nothing_behind_it():
    wanted = NemotronSettings(max_new_tokens=16, block_size=4)
    session = new_session([1], wanted, VOCABULARY, given=GivenTokens({0: 9, 3: 7}))
    assert session.generated[:4] == [9, MASK, MASK, 7]
    with pytest.raises(SettingsError, match="sees nothing from position 1 on"):
        new_session([1], wanted, VOCABULARY, given=GivenTokens({3: 7}))


@settings(max_examples=25)
@given(any_vanilla(), GIVEN)
def test_a_schedule_counts_the_positions_to_fill(wanted, tokens):
    """One branch, no end: each block takes its calls, and none more than it has masks where one is filled per call."""
    wanted = wanted.replace(num_branches=1, steps=None, remasking="low_confidence", block_size=None)
    session = session_with([1], wanted, tokens)
    steps = list(steps_of(session, FakeModel(eos_probability=0.0)))
    assert len(steps) == wanted.max_new_tokens - len(session.given)


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_dreams_first_call_is_the_rule_where_the_first_position_is_given(cache):
    wanted = FastDllmSettings(max_new_tokens=8, block_size=4, cache=cache, confidence_threshold=0.0)
    session = new_session([1], wanted, replace(VOCABULARY, shifted=True), given=GivenTokens({0: 3, 5: 4}))
    first, *others = steps_of(session, FakeModel())
    assert list(first.outcome.canvas)[:4].count(MASK) == 0
    assert len(others) == (1 if cache == "none" else 2)


def test_a_canvas_of_blocks_begins_with_all_that_is_given():
    wanted = LopaSettings(max_new_tokens=20, block_size=4, num_branches=1, block_add_threshold=1.0)
    session = new_session([1], wanted, VOCABULARY, given=GivenTokens({0: 3, 1: 3, 2: 3, 3: 3, 13: 4}))
    plan = session.plan()
    assert len(plan.canvas) == 1 + 16 and plan.canvas[14] == 4
    assert plan.branches[0].to_stage == (range(0, 5),)  # the given block is cached with the prompt
    for before, after in pairwise(steps_of(session, FakeModel())):
        assert len(before.outcome.canvas) <= len(after.outcome.canvas) <= 20
    assert final_part(session.generated, range(0), 1)[13] == 4
