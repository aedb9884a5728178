"""What a choice reports of steps in which the rule takes the reports of several branches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Backend, decoders, models
from transformers import PreTrainedTokenizerFast

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoiceCanvas, ChoiceFinished, ChoicesRequest
from lopa_ray.decoding.trace import trace_step
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.step_report import PHASES, StepTiming
from lopa_ray.text.tokenizer import Tokenizer
from support.tiny_model import tiny_config
from support.verified_decode import PROBLEM, VERIFIED

pytestmark = pytest.mark.medium

TIMING = StepTiming(plan=0.1, scatter=0.1, commit=0.1, forward=0.1, gather=0.1, select=0.1)


@pytest.fixture(scope="module")
def decode() -> tuple[list[RequestStep], list[ChoiceCanvas], ChoiceFinished]:
    """The steps of one choice with verified lookahead, its snapshots, and its end."""
    settings = {**VERIFIED.given(), "top_logprobs": 2}
    request = ChoicesRequest("id", (PROBLEM,), settings, stream=True, stream_canvas=True, trace=True)
    engine = LocalEngine.from_pretrained("demo")
    (choice,) = ChoiceFactory(engine).create(request, 0.0)
    steps: list[RequestStep] = []
    outputs = []

    def on_event(_: int, event: RequestStep) -> None:
        steps.append(event)
        outputs.extend(choice.add_step(replace(event, timing=TIMING)))

    list(engine.run([choice.session], on_event=on_event))
    (finished,) = [output for output in outputs if isinstance(output, ChoiceFinished)]
    return steps, [output for output in outputs if isinstance(output, ChoiceCanvas)], finished


@pytest.mark.parametrize("piece", ["\u2581w{}", "w{}", "\u2581\u2581w{}", "<0x{:02X}>", "w\u2581{}"])
def test_places_of_tokens_are_those_of_a_text_without_its_first_space(piece: str) -> None:
    backend = Backend(models.BPE({piece.format(at + 100): at for at in range(126)}, []))
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    tiny = LocalEngine.from_config(tiny_config())
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    engine = LocalEngine(tiny.config, tiny.runner, tokenizer)
    request = ChoicesRequest("id", ((1, 2),), {"max_new_tokens": 9}, raw=True, logprobs=True)
    (choice,) = ChoiceFactory(engine).create(request, 0.0)
    outputs: list[object] = []
    list(engine.run([choice.session], on_event=lambda _, event: outputs.extend(choice.add_step(event))))
    (finished,) = outputs
    assert isinstance(finished, ChoiceFinished) and len(finished.logprobs) > 2
    in_text = b"".join(token.in_text for token in finished.logprobs)
    assert len(in_text.decode(errors="replace")) == len(finished.text)


Decode = tuple[list[RequestStep], list[ChoiceCanvas], ChoiceFinished]


def test_snapshots_tell_which_drafts_were_accepted_and_what_each_report_filled(decode: Decode) -> None:
    steps, snapshots, _ = decode
    assert len(snapshots) == len(steps)
    decided: set[int] = set()
    accepted = 0
    for event, snapshot in zip(steps, snapshots, strict=True):
        assert [step.branch for step in snapshot.rule_steps] == [
            step.branch for step in event.outcome.rule_steps
        ]
        filled = [position for step in snapshot.rule_steps for position in step.positions]
        # Each position that this step decided was filled in one step of the rule.
        newest = {at for at, cell in enumerate(snapshot.cells) if cell.s == snapshot.step}
        assert sorted(filled) == sorted(newest) and decided.isdisjoint(newest)
        decided |= newest
        names = [branch.name for branch in snapshot.branches]
        assert names == ["anchor", *(f"+{number}" for number in range(1, len(names)))]
        accepted += len(snapshot.rule_steps) > 1
    assert accepted


def test_snapshots_have_the_candidates_of_what_a_step_scored(decode: Decode) -> None:
    for snapshot in decode[1]:
        scored = {candidates.position: candidates for candidates in snapshot.candidates}
        assert len(scored) == len(snapshot.candidates)
        decided = {at: cell.t for at, cell in enumerate(snapshot.cells) if cell.s == snapshot.step}
        assert decided.items() <= {at: candidates.tokens[0] for at, candidates in scored.items()}.items()
        assert all(1 >= first >= second >= 0 for first, second in (c.probabilities for c in scored.values()))


def test_statistics_count_forwards_and_steps_of_the_rule(decode: Decode) -> None:
    steps, _, finished = decode
    assert finished.stats.steps == len(steps) < finished.stats.rule_steps
    assert finished.stats.rule_steps == sum(len(event.outcome.rule_steps) for event in steps)


def test_trace_events_name_the_accepted_drafts(decode: Decode) -> None:
    steps, _, finished = decode
    assert len(finished.trace) == len(steps) * len(PHASES)
    shown = [event["args"] for event in finished.trace[:: len(PHASES)]]
    for event, arguments in zip(steps, shown, strict=True):
        step = trace_step(event.plan, event.outcome)
        assert arguments == {
            "step": step.step,
            "branches": len(step.branches),
            "winner": step.branch_name(step.winner),
            "rule_steps": step.depth,
            "accepted": " ".join(f"+{draft}" for draft in step.accepted),
            "tokens": len(step.decided),
        }
    assert any(len(arguments["accepted"].split()) > 1 for arguments in shown)
