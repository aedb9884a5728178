"""`lopa generate --watch`: the canvas as it fills, with the branches of each step next to it or below it."""

from __future__ import annotations

import colorsys
import io
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lopa_ray.decoding.branch_confidence import parse_metric
from lopa_ray.decoding.trace import TraceStep

if TYPE_CHECKING:
    from lopa_ray.decoding.session import DecodeSession
    from lopa_ray.text.tokenizer import Tokenizer

MIN_FRAME_S = 0.3  # how long a frame stays at least, unless drawing lags behind decoding
MAX_LAG_S = 6.0  # shared by the steps that wait to be drawn, where these are many
SIDE_BY_SIDE_COLUMNS = 100  # a narrower terminal has the branches below the canvas
BRANCHES_WIDTH = 46
MAX_BRANCH_ROWS = 12
MAX_BAR_WIDTH = 16
ROW_WIDTH_BESIDE_BAR = 33  # of a branch: borders, mark, name, fills, confidence and the spaces between them
MASK_SYMBOL, EOS_SYMBOL = "·", "∎"
INSERTION_SYMBOL, DELETION_SYMBOL = "‸", "⌫"


@dataclass(frozen=True, slots=True)
class CanvasFrame:
    """One step, and for each position of the answer the number of the step that decided it (0: masked)."""

    step: TraceStep
    decided_in: tuple[int, ...]


class CanvasRenderer:
    def __init__(self, tokenizer: Tokenizer | None, session: DecodeSession) -> None:
        self._tokenizer = tokenizer
        self._prompt_len = len(session.prompt)
        self._eos_token_id = session.vocabulary.eos_token_id
        settings = session.settings
        metric = getattr(settings, "branch_confidence", "mean")
        # Metrics of probabilities are negative if they are logarithms.
        self._is_logarithm = settings.ranking == "neg_entropy" or parse_metric(metric)([0.5]) < 0
        self._given = session.given.tokens
        self._decided_in: dict[int, int] = {}

    def next_frame(self, step: TraceStep) -> CanvasFrame:
        step.update(self._decided_in, lambda *_: step.step)
        answer = range(self._prompt_len, self._prompt_len + len(step.canvas))
        return CanvasFrame(step, tuple(self._decided_in.get(position, 0) for position in answer))

    def render(self, frame: CanvasFrame, columns: int) -> RenderableType:
        step = frame.step
        decided = sum(1 for number in frame.decided_in if number)
        total = len(step.canvas) - len(self._given)
        title = f"step {step.step} · {decided}/{total} decided · {decided / step.step:.1f} per step"
        if step.depth > 1:
            title += f" · depth {step.depth}"
        canvas = Panel(self.canvas(frame), title=title, title_align="left", border_style="dim")
        if len(step.branches) == 1:
            return canvas
        side_by_side = columns >= SIDE_BY_SIDE_COLUMNS
        shown = self.branch_table(step, BRANCHES_WIDTH if side_by_side else columns)
        title = "branches by confidence, 0 to 1"
        branches = Panel(shown, title=title, title_align="left", border_style="dim")
        if not side_by_side:
            return Group(canvas, branches)
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(ratio=1)
        table.add_column(width=BRANCHES_WIDTH)
        table.add_row(canvas, branches)
        return table

    def canvas(self, frame: CanvasFrame) -> Text:
        """The answer as it stands: tokens coloured by step, the newest bold; given tokens are plain. Marks stand for
        inserted masks, and where tokens were deleted."""
        text, shifts = Text(), [step.shift for step in frame.step.rule_steps]
        inserted = {position - self._prompt_len for shift in shifts for position in shift.inserted}
        deletions = {position - self._prompt_len for shift in shifts for position in shift.deletions}
        for at, (token, decided_in) in enumerate(zip(frame.step.canvas, frame.decided_in, strict=True)):
            if at in deletions:
                text.append(DELETION_SYMBOL, "red")
            if at in self._given:
                text.append(self._token_text(token))
            elif not decided_in:
                text.append(*((INSERTION_SYMBOL, "green") if at in inserted else (MASK_SYMBOL, "dim")))
            else:
                style = step_colour(decided_in) + (" bold underline" if decided_in == frame.step.step else "")
                text.append(self._token_text(token), "dim" if token == self._eos_token_id else style)
        return text

    def branch_table(self, step: TraceStep, width: int) -> RenderableType:
        """The anchor comes first, then accepted drafts. Logarithms of confidences are shown as the confidences."""
        bar_width = min(MAX_BAR_WIDTH, max(1, width - ROW_WIDTH_BESIDE_BAR))
        branches = step.branches
        order = sorted(
            range(len(branches)), key=lambda at: (bool(branches[at].fills), at not in step.accepted)
        )
        shown = order[:MAX_BRANCH_ROWS]
        if step.winner not in shown:
            shown[-1] = step.winner
        table = Table.grid(padding=(0, 1))
        for at in shown:
            branch = step.branches[at]
            confidence = self._share(branch.confidence)
            won = at == step.winner
            counts = won or at in step.accepted
            fills = [(p - self._prompt_len, self._token_text(token).strip()) for p, token in branch.fills]
            tried = " ".join(f"{text or '␣'}@{position}" for position, text in fills)
            table.add_row(
                Text("▶" if won else "✓" if counts else " ", "bold green"),
                Text(step.branch_name(at), "bold" if counts else ""),
                Text(tried[:12], "cyan"),
                Text(("━" * round(confidence * bar_width)).ljust(bar_width), "green" if counts else "blue"),
                Text(f"{confidence:.3f}", "bold" if counts else "dim"),
            )
        hidden = len(order) - len(shown)
        return Group(table, Text(f"and {hidden} more", "dim")) if hidden else table

    def render_line(self, frame: CanvasFrame) -> str:
        """A line for output in which nothing can be redrawn."""
        return f"{self._head(frame.step)}{self.canvas(frame).plain}"

    def step_line(self, frame: CanvasFrame) -> Text:
        """The line that a step leaves on a terminal: its branch, and the decided tokens in order of position."""
        step = frame.step
        line = Text(self._head(step))
        number = len(step.decided)
        line.append(f"{number:>3} token{'s' * (number != 1):<1}  ", "dim")
        at = None
        for decision in sorted(step.decided, key=lambda decision: decision.position):
            if at is not None and decision.position != at + 1:
                line.append(" … ", "dim")
            line.append(self._token_text(decision.token), step_colour(step.step))
            at = decision.position
        return line

    def _head(self, step: TraceStep) -> str:
        won = step.branch_name(step.winner)
        if step.depth > 1:
            won += f" depth {step.depth}"
        return f"step {step.step:>3}  {won:<6}  "

    def _share(self, confidence: float) -> float:
        """A bar's share from 0 to 1. A branch with no empty position left has the confidence 1 under any metric."""
        share = math.exp(min(0.0, confidence)) if self._is_logarithm else confidence
        return min(1.0, max(0.0, share))

    def _token_text(self, token: int) -> str:
        if token == self._eos_token_id:
            return EOS_SYMBOL
        text = f"{token} " if self._tokenizer is None else self._tokenizer.token_text(token)
        return text.replace("\n", "⏎").replace("\r", "").replace("\t", " ")


def step_colour(step: int) -> str:
    red, green, blue = colorsys.hls_to_rgb((0.55 + 0.09 * step) % 1.0, 0.68, 0.65)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


class Watcher:
    """Draws steps from a thread of its own, so that drawing never holds up decoding."""

    def __init__(self, console: Console | None, tokenizer: Tokenizer | None, session: DecodeSession) -> None:
        """Draw nothing without a console, and only keep frames for `save_svg`."""
        self._renderer = CanvasRenderer(tokenizer, session)
        self._console = console
        self._frames: list[CanvasFrame] = []
        self._queue: SimpleQueue[TraceStep | None] = SimpleQueue()
        self._thread = Thread(target=self._draw, daemon=True)
        self._aborted = Event()

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._aborted.set()
        self._queue.put(None)
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._aborted.set()
            self._thread.join()  # it gives the cursor back
            raise

    def on_step(self, _index: int, step: TraceStep) -> None:
        self._queue.put(step)

    def _draw(self) -> None:
        console, renderer = self._console, self._renderer
        redrawn = console is not None and console.is_terminal
        with Live(console=console, auto_refresh=False) if redrawn else nullcontext() as live:
            while (step := self._queue.get()) is not None:
                frame = renderer.next_frame(step)
                self._frames.append(frame)
                if console is None or self._aborted.is_set():
                    continue
                if live is None:
                    console.print(renderer.render_line(frame), markup=False, soft_wrap=True)
                else:
                    console.print(renderer.step_line(frame), no_wrap=True, overflow="ellipsis")
                    live.update(renderer.render(frame, console.width), refresh=True)
                    self._aborted.wait(min(MIN_FRAME_S, MAX_LAG_S / (1 + self._queue.qsize())))

    def save_svg(self, path: Path) -> None:
        columns = 64  # readable on a phone
        console = Console(
            record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        last = len(self._frames) - 1
        for at in sorted({last // 3, 2 * last // 3, last}) if self._frames else ():
            console.print(self._renderer.render(self._frames[at], columns))
        path.write_text(console.export_svg(title="lopa generate --watch"), encoding="utf-8")
