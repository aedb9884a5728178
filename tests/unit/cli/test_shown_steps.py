"""What `lopa generate` shows and records of steps."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from cluster.cli import app
from cluster.cli.watch import CanvasRenderer
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.indel import IndelSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceRuleStep, TraceStep
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.outcome import Decision, Shift
from support.paths import MODELS
from support.verified_decode import PROBLEM

pytestmark = pytest.mark.medium

NBSP = "&#160;"
"""How a drawing has a space."""

torch.set_num_threads(1)


def generate(*options: str) -> str:
    """What the command prints on stdout."""
    result = CliRunner().invoke(app, ["generate", "--local", "-n", "64", "-b", "8", *options, PROBLEM])
    assert result.exit_code == 0, result.output
    return result.stdout


VERIFIED = ("--set", "decode.lookahead=verified")


def test_accepted_drafts_are_watched_traced_and_counted(tmp_path: Path) -> None:
    trace, drawing = tmp_path / "trace.jsonl", tmp_path / "steps.svg"
    files = ("--trace", str(trace), "--svg", str(drawing))
    shown = generate(*VERIFIED, "--watch", *files).splitlines()
    steps = [json.loads(line) for line in trace.read_text().splitlines()]
    depths = [len(step["rule_steps"]) for step in steps]
    assert max(depths) > 1
    for line, step, depth in zip(shown, steps, depths, strict=False):
        assert line.startswith(f"step {step['step']:>3}  ")
        assert (f" depth {depth}  " in line) == (depth > 1)
        assert f"  +{step['winner']} " in line or (step["winner"] == 0 and "  anchor " in line)
        assert step["fills"] == [fill for rule_step in step["rule_steps"] for fill in rule_step["fills"]]
    accepted = [len({rule_step["branch"] for rule_step in step["rule_steps"]} - {0, None}) for step in steps]
    evaluated = sum(len(step["branches"]) - 1 for step in steps)
    table = dict(
        line.strip().split(maxsplit=1) for line in shown if line.startswith(("depth", "drafts", "steps"))
    )
    assert table["steps"].split() == [str(len(steps))]
    assert table["depth"] == f"{sum(depths) / len(steps):.2f} denoising steps per step"
    assert table["drafts"] == f"{sum(accepted)} of {evaluated} accepted"
    last = len(steps) - 1
    drawn = {last // 3, 2 * last // 3, last}
    assert (f"depth{NBSP}" in drawing.read_text()) == any(depths[at] > 1 for at in drawn)
    assert ("✓" in drawing.read_text()) == any(accepted[at] > 1 for at in drawn)
    result = json.loads(generate(*VERIFIED, "--json"))
    assert (result["steps"], result["rule_steps"]) == (len(steps), sum(depths))


def test_forks_that_compete_have_no_depth() -> None:
    shown = generate("--watch")
    assert re.search(r"^lookahead +won \d+ of \d+ steps", shown, re.MULTILINE)
    assert not any(word in shown for word in ("depth", "drafts"))


def test_an_edited_token_is_shown_as_one_of_the_step_that_edited_it() -> None:
    engine = LocalEngine.from_pretrained("demo")
    settings = EditingSettings(
        max_new_tokens=24, block_size=8, confidence_threshold=0.3, editing_threshold=0.0
    )
    result = engine.generate(PROBLEM, settings, trace=True)
    session = engine.create_session(PROBLEM, settings)
    renderer = CanvasRenderer(engine.tokenizer, session)
    edits = 0
    decided: dict[int, int] = {}
    for step in result.trace:
        edits += sum(decision.position in decided for decision in step.decided)
        decided |= {decision.position: step.step for decision in step.decided}
        frame = renderer.next_frame(step)
        positions = range(len(session.prompt), len(session.prompt) + len(step.canvas))
        assert frame.decided_in == tuple(decided.get(position, 0) for position in positions)
    assert edits


def test_deletions_and_insertions_are_marked_and_tokens_keep_their_steps() -> None:
    engine = LocalEngine.from_pretrained(MODELS / "llada22-tiny-3l", max_model_len=64)
    settings = IndelSettings(max_new_tokens=5, block_size=8)
    session = engine.create_session([1, 2, 3], settings)
    renderer = CanvasRenderer(None, session)

    def shown(number: int, canvas: str, filled: dict[int, int], shift: Shift) -> str:
        ids = tuple(session.vocabulary.mask_token_id if letter == "_" else int(letter) for letter in canvas)
        decided = tuple(Decision(at, token, 1.0, 0.0, ()) for at, token in filled.items())
        fills = tuple(decision.fill for decision in decided)
        rule_step = TraceRuleStep(0, fills, shift)
        step = TraceStep(
            step=number, branches=(), winner=0, fills=fills, rule_steps=(rule_step,), decided=decided,
            input_start=0, cached=0, kept=0, blocks=(), canvas=ids,
        )  # fmt: skip
        frame = renderer.next_frame(step)
        return f"{frame.decided_in} {renderer.canvas(frame).plain}"

    assert shown(1, "45__7", {3: 4, 4: 5, 7: 7}, Shift()) == "(1, 1, 0, 0, 1) 4 5 ··7 "
    # The 4 goes, a mask comes before the 7, and all that was behind it has moved to the left.
    shift = Shift(((4, 3), (5, 4), (6, 5), (None, 6)), inserted=(6,), deletions=(3,))
    assert shown(2, "5__67", {6: 6}, shift) == "(1, 0, 0, 2, 1) ⌫5 ··6 7 "
    assert shown(3, "5__67", {}, Shift(inserted=(4,))) == "(1, 0, 0, 2, 1) 5 ‸·6 7 "


@pytest.fixture(scope="module")
def decoded() -> tuple[LocalEngine, DecodeSession, tuple[TraceStep, ...]]:
    """A decode with branches, whose ranking is by entropy, and its steps."""
    engine = LocalEngine.from_pretrained("demo")
    settings = engine.decode_settings(None, ranking="neg_entropy", num_branches=4, max_new_tokens=64)
    steps = engine.generate(PROBLEM, settings, trace=True).trace
    return engine, engine.create_session(PROBLEM, settings), steps


Decoded = tuple[LocalEngine, DecodeSession, tuple[TraceStep, ...]]


@pytest.mark.parametrize("columns", [40, 99, 100])
def test_a_narrow_terminal_has_the_branches_below_the_canvas(decoded: Decoded, columns: int) -> None:
    engine, session, steps = decoded
    renderer = CanvasRenderer(engine.tokenizer, session)
    for step in steps:
        frame = renderer.next_frame(step)
        console = Console(width=columns, file=io.StringIO())
        with console.capture() as shown:
            console.print(renderer.render(frame, columns))
        lines = shown.get().splitlines()
        assert all(len(line.rstrip()) <= columns for line in lines)
        if len(step.branches) == 1:
            continue
        beside = [line for line in lines if line.startswith("╭") and "branches" in line and "step" in line]
        assert bool(beside) == (columns >= 100)
        whole = "".join(line.split("│")[1].strip() for line in lines if line.startswith("│ "))
        canvas = "".join(renderer.canvas(frame).plain.split())
        assert canvas[:8] in "".join(whole.split())


def test_confidences_are_on_one_scale(decoded: Decoded) -> None:
    engine, session, steps = decoded
    renderer = CanvasRenderer(engine.tokenizer, session)
    shares = []
    for step in (step for step in steps if len(step.branches) > 1):
        console = Console(width=46, file=io.StringIO())
        with console.capture() as shown:
            console.print(renderer.branch_table(step, 46))
        numbers = [float(line.split()[-1]) for line in shown.get().splitlines()]
        expected = [min(1.0, math.exp(min(0.0, branch.confidence))) for branch in step.branches]
        assert sorted(numbers) == sorted(round(share, 3) for share in expected)
        shares += numbers
    assert shares and all(0.0 <= share <= 1.0 for share in shares)
