"""Answers whose tokens are edited while they are made: text leaves when it is final, the canvas shows every edit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from cluster.choices.choice import ChoiceState
from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import (
    CanvasCell,
    ChoiceCanvas,
    ChoiceFinished,
    ChoicesOutput,
    ChoicesRequest,
    TextDelta,
)
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.indel import IndelSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep
from support.verified_decode import PROBLEM

pytestmark = pytest.mark.medium

SETTINGS = [
    EditingSettings(
        max_new_tokens=48, block_size=16, confidence_threshold=0.3, editing_threshold=0.0, max_post_steps=4
    ),
    DMaxSettings(max_new_tokens=48, block_size=16, confidence_threshold=0.3),
    MultiBlockSettings(
        max_new_tokens=48, block_size=8, max_blocks=3, confidence_threshold=0.3, editing_threshold=0.0
    ),
    IndelSettings(max_new_tokens=48, block_size=16, confidence_threshold=0.3, max_post_steps=4),
]

DELETE, SPLIT = "3", "."
"""Tokens that the model writes here and there, and that stand for the two it has not been trained with."""


@dataclass(frozen=True)
class Decode:
    """The steps of a choice, and the outputs of each."""

    settings: LookaheadSettings
    choice: ChoiceState
    steps: list[tuple[RequestStep, list[ChoicesOutput]]]

    @property
    def text(self) -> str:
        return "".join(
            output.text for _, outputs in self.steps for output in outputs if isinstance(output, TextDelta)
        )

    @property
    def finished(self) -> ChoiceFinished:
        (finished,) = [
            output for _, outputs in self.steps for output in outputs if isinstance(output, ChoiceFinished)
        ]
        return finished


def decode(settings: LookaheadSettings, stop: tuple[str, ...] = ()) -> Decode:
    engine = LocalEngine.from_pretrained("demo")
    assert engine.tokenizer is not None
    (delete,), (split,) = engine.tokenizer.encode(DELETE), engine.tokenizer.encode(SPLIT)
    engine.vocabulary = replace(engine.vocabulary, delete_token_id=delete, split_token_id=split)
    request = ChoicesRequest(
        "id", (PROBLEM,), settings.given(), stream=True, stream_canvas=True, stop=stop, logprobs=True
    )
    (choice,) = ChoiceFactory(engine).create(request, 0.0)
    steps: list[tuple[RequestStep, list[ChoicesOutput]]] = []

    def on_event(_: int, event: RequestStep) -> None:
        if not choice.finished:
            steps.append((event, list(choice.add_step(event))))

    list(engine.run([choice.session], on_event=on_event))
    return Decode(settings, choice, steps)


@pytest.fixture(scope="module", params=SETTINGS, ids=lambda settings: settings.decoder)
def whole(request: pytest.FixtureRequest) -> Decode:
    return decode(request.param)


def edits(of: Decode) -> set[tuple[int, int]]:
    """(step, position) of each token that replaced another one."""
    decided: set[int] = set()
    made = set()
    for event, _ in of.steps:
        for decision in event.outcome.filled:
            if decision.position in decided:
                made.add((event.outcome.step, decision.position))
            decided.add(decision.position)
    return made


def test_a_snapshot_shows_what_has_moved_and_tokens_keep_their_steps() -> None:
    moved = decode(SETTINGS[-1])
    vocabulary = moved.choice.session.vocabulary
    before: ChoiceCanvas | None = None
    kinds = set()
    for event, outputs in moved.steps:
        (snapshot,) = [output for output in outputs if isinstance(output, ChoiceCanvas)]
        (rule_step,) = snapshot.rule_steps
        filled = set(rule_step.positions)
        assert not {vocabulary.delete_token_id, vocabulary.split_token_id} & {*event.outcome.canvas}
        for source, target in rule_step.moves:
            kinds.add("mask" if source is None else "left" if source > target else "right")
            if before is not None and target not in filled:
                cell = before.cells[source] if source is not None else CanvasCell("", 0)
                assert snapshot.cells[target] == cell
        kinds |= {"deletion" for _ in rule_step.deletions} | {"insertion" for _ in rule_step.inserted}
        assert all((None, at) in rule_step.moves or not snapshot.cells[at].t for at in rule_step.inserted)
        before = snapshot
    assert kinds == {"mask", "left", "right", "deletion", "insertion"}


def test_text_leaves_at_the_end_of_its_block_and_is_that_of_the_answer(whole: Decode) -> None:
    assert edits(whole)
    prompt = len(whole.choice.session.prompt)
    last = whole.steps[-1][0].outcome
    emitted = 0
    for event, outputs in whole.steps:
        for delta in (output for output in outputs if isinstance(output, TextDelta)):
            emitted += len(delta.logprobs)
        editable = event.outcome.editable
        final = editable.start - prompt if editable else len(last.canvas)
        assert emitted <= final
        assert event.outcome.canvas[:final] == last.canvas[:final]
    assert emitted
    assert whole.text == whole.finished.text
    assert [entry.token for entry in whole.finished.logprobs] == [
        whole.choice._tokenizer.token_text(token) for token in last.canvas[: len(whole.finished.logprobs)]
    ]


def test_a_snapshot_shows_the_step_that_edited_a_position(whole: Decode) -> None:
    prompt = len(whole.choice.session.prompt)
    for event, outputs in whole.steps:
        (snapshot,) = [output for output in outputs if isinstance(output, ChoiceCanvas)]
        for decision in event.outcome.filled:
            assert snapshot.cells[decision.position - prompt].s == event.outcome.step


def test_a_stop_text_that_is_edited_away_ends_nothing(whole: Decode) -> None:
    """A token of an unfinished block that the finished one does not have."""
    tokenizer = whole.choice._tokenizer
    passing = {
        text.strip()
        for event, _ in whole.steps
        for token in event.outcome.canvas
        if (text := tokenizer.token_text(token)).strip() and text.strip() not in whole.text
    }
    assert passing
    assert decode(whole.settings, tuple(sorted(passing))[:4]).text == whole.text


def test_a_stop_text_of_a_finished_block_ends_the_answer(whole: Decode) -> None:
    stop = whole.text[len(whole.text) // 3 :][:4]
    stopped = decode(whole.settings, (stop,))
    assert stopped.finished.text == whole.text[: whole.text.index(stop)]
    assert stopped.finished.finish_reason == "stop"
