"""Deletions and insertions: what a call does to a block, what moves along, and what stays where it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.decoding.decoders.indel import IndelSettings
from lopa_ray.decoding.decoders.indel_block import IndelBlock, IndelRule
from lopa_ray.decoding.trace import trace_step
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import FakeModel
from support.fake_session import decode
from support.settings_strategies import PROMPTS, any_settings

MASK, EOS, DELETE, SPLIT = 11, 10, 9, 8
SMALL = Vocabulary(
    12, MASK, EOS, delete_token_id=DELETE, split_token_id=SPLIT
)  # a fifth of the tokens move something
RULE = IndelRule((MASK, DELETE, SPLIT), 0.5, 0.0, max_post_steps=4, max_calls=8)


def models(**fixed: float) -> st.SearchStrategy[FakeModel]:
    return st.builds(
        FakeModel,
        seed=st.integers(0, 2**16),
        vocabulary=st.just(SMALL),
        **{k: st.just(v) for k, v in fixed.items()},
    )


def stepped(
    ids: str, likely: str, block: IndelBlock | None = None, rule: IndelRule = RULE, probability: float = 0.9
):
    """A call on a block from position 4 on, as (tokens, block after, shift). Letters are tokens; `_`, D, S special."""
    number = {"_": MASK, "D": DELETE, "S": SPLIT}
    letters = {token: letter for letter, token in number.items()}

    def numbers(text: str) -> dict[int, int]:
        return {at: number.get(letter, ord(letter) - ord("a")) for at, letter in enumerate(text, 4)}

    before = numbers(ids)
    block = block or IndelBlock(frozenset(p for p, token in before.items() if token == MASK))
    # Candidates after the first one, for where that may not be written.
    candidates = {
        at: [
            Decision(at, token, probability, -0.1, ()),
            *(Decision(at, other, 0.01, -4.6, ()) for other in range(8) if other != token),
        ]
        for at, token in numbers(likely).items()
    }
    block, shift, filled = block.step(before, candidates, rule)
    after = dict(before)
    for source, target in shift.moves:
        after[target] = MASK if source is None else before[source]
    after |= dict(decision.fill for decision in filled)
    return "".join(letters.get(token, chr(ord("a") + token)) for token in after.values()), block, shift


@pytest.mark.parametrize(
    ("ids", "likely", "after"),
    [
        ("abcd", "aDcd", "acd_"),
        ("abcd", "aScd", "a_bc"),  # d is lost
        ("abcd", "DSce", "_bce"),
        ("abcd", "abcD", "abc_"),
        ("abcd", "abcS", "abc_"),  # d is lost
        ("abcd", "DDDD", "____"),
        ("abcd", "SSSS", "_a_b"),
        ("ab__", "SDSD", "_a__"),
        ("ab__", "abSe", "ab__"),  # a mask splits into two, and e is lost
        ("ab__", "aSce", "a_bc"),
        ("abcd", "a_ed", "a_ed"),  # a token is given up
        ("DScd", "DScd", "DScd"),  # they are written here only
    ],
)
def test_a_call_writes_deletes_and_inserts_from_left_to_right(ids: str, likely: str, after: str) -> None:
    assert stepped(ids, likely)[0] == after


@pytest.mark.parametrize(
    ("likely", "inserted", "deletions"),
    [
        ("aScd", (5,), ()),
        ("aScD", (5,), ()),  # d is lost anyway
        ("abDD", (), (6,)),
        ("DDcS", (5,), (4,)),
        ("a_cd", (), ()),  # b is given up
    ],
)
def test_insertions_and_deletions_are_told_from_other_new_masks(likely, inserted, deletions) -> None:
    _, _, shift = stepped("abcd", likely)
    assert (shift.inserted, shift.deletions) == (inserted, deletions)


def test_a_mask_in_the_prompt_is_a_token_like_others() -> None:
    wanted = IndelSettings(max_new_tokens=11, block_size=8, stop_at_eos=False)
    session, steps = decode([1, MASK, DELETE, MASK, 2], wanted, FakeModel(seed=3, vocabulary=SMALL), SMALL)
    assert session.prompt == [1, MASK, DELETE, MASK, 2] and MASK not in session.generated
    assert all(min(step.plan.branches[0].scored) >= 5 for step in steps)
    assert {view.masks for view in steps[-1].outcome.blocks} == {0}


def test_new_masks_need_not_be_filled_and_flags_move_along() -> None:
    after, block, _ = stepped("a___", "SDfg", probability=0.4)
    # Of three masks one has to be filled; the first is, by deleting it.
    assert after == "_a__"
    assert block.original == {6, 7}
    _, block, _ = stepped(after, "_abb", block, probability=0.4)
    assert block.post_steps == 0


def test_calls_without_masks_of_the_beginning_are_counted_and_never_set_back() -> None:
    block = IndelBlock(
        frozenset({4}), calls=5, post_steps=2, inputs=frozenset({(3,)}), written=frozenset({(4, 3)})
    )
    # One with such a mask in between changes nothing.
    _, block, _ = stepped("_b", "cb", block)
    assert (block.post_steps, block.is_final) == (2, False)
    _, block, _ = stepped("cb", "_b", block)
    assert (block.post_steps, block.is_final) == (3, False)
    after, block, _ = stepped("c_", "DS", block._replace(original=frozenset()))
    assert (after, block.post_steps, block.is_final) == ("aa", 4, True)


def test_what_was_seen_before_is_left_by_a_token_that_was_never_written_there() -> None:
    _, block, _ = stepped("ab", "ac")
    _, block, _ = stepped("ac", "ab", block)
    after, *_ = stepped("ab", "ac", block)
    assert after == "aa"


def test_without_a_budget_the_call_that_fills_the_last_mask_is_the_last() -> None:
    after, block, _ = stepped("ab__", "aDSf", rule=RULE._replace(max_post_steps=0))
    assert (after, block.is_final) == ("aaaf", True)


@settings(max_examples=60, deadline=None)
@given(PROMPTS, any_settings("indel"), models())
def test_traces_say_where_each_token_has_come_from(prompt, wanted, model):
    prompt = [token % 8 for token in prompt]
    wanted = wanted.replace(stop_token_ids=(), logit_bias={}, stop_at_eos=False)
    session, steps = decode(prompt, wanted, model, SMALL)
    entries: dict[int, tuple[int, float]] = {}
    for step in steps:
        traced = trace_step(step.plan, step.outcome)
        traced.update(entries, lambda _, decision: (decision.token, decision.logprob))
        canvas = dict(enumerate(step.outcome.canvas, len(prompt)))
        assert {at: token for at, (token, _) in entries.items()} == {
            at: token for at, token in canvas.items() if token != MASK
        }
        editable = step.outcome.editable
        assert all(to in editable or not editable for rule in traced.rule_steps for _, to in rule.shift.moves)
    assert MASK not in session.generated
    assert len(steps) <= session.step_limit


@settings(max_examples=40, deadline=None)
@given(models(), st.integers(1, 3), st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True))
def test_given_parts_stay_where_they_are(model, branches, offsets):
    parts = [{"at": at, "token_ids": [DELETE]} for at in sorted(offsets)]
    wanted = IndelSettings(
        max_new_tokens=12,
        block_size=16,
        given_parts=parts,
        num_branches=branches,
        max_post_steps=3,
        stop_at_eos=False,
    )
    _, steps = decode([1, 2], wanted, model, SMALL)
    for step in steps:
        assert all(step.outcome.canvas[at] == DELETE for at in offsets)
        of_rules = [move for rule in step.outcome.rule_steps for move in rule.shift.moves]
        holes = [at for at in range(2, 14) if at - 2 not in offsets]
        for source, target in of_rules:
            low, high = sorted((target if source is None else source, target))
            assert all(at in holes for at in range(low, high + 1))


@settings(max_examples=40, deadline=None)
@given(models(eos_probability=0.5), st.integers(0, 9))
def test_the_first_tokens_are_no_end(model, min_tokens):
    wanted = IndelSettings(
        max_new_tokens=10, block_size=4, min_tokens=min_tokens, max_post_steps=2, stop_at_eos=False
    )
    session, _ = decode([1, 2, 3], wanted, model, SMALL)
    assert EOS not in session.generated[:min_tokens]


def test_models_without_the_tokens_never_move(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = replace(SMALL, delete_token_id=None, split_token_id=None)
    model = FakeModel(seed=5, vocabulary=vocabulary)
    _, steps = decode([1], IndelSettings(max_new_tokens=12, block_size=4), model, vocabulary)
    moves = [move for step in steps for rule in step.outcome.rule_steps for move in rule.shift.moves]
    assert all(source is None for source, _ in moves)
    assert any(DELETE in step.outcome.canvas or SPLIT in step.outcome.canvas for step in steps)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"top_k": 3},
        {"logit_bias": {3: 1.0}},
        {"guided_regex": "a"},
        {"bad_words": ("a",)},
    ],
)
def test_what_the_rule_has_no_place_for_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="with decoder indel"):
        IndelSettings(**changes)
