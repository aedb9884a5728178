"""The canvas as it fills, with the branch race beside it."""

from __future__ import annotations

import colorsys
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lopa_ray.decoding.result import TraceStep

if TYPE_CHECKING:
    from lopa_ray.decoding.session import DecodeSession
    from lopa_ray.text.tokenizer import Tokenizer

FRAME_SECONDS = 0.12
"""How long a picture stays at least, unless drawing lags behind decoding."""

LAG_SECONDS = 3.0
"""How far drawing may lag behind."""

MAX_RACERS = 12
BAR_CELLS = 16
MASK, END = "·", "∎"


@dataclass(frozen=True, slots=True)
class Frame:
    """One step, and for each position of the answer the step that decided it (0: masked)."""

    step: TraceStep
    decided: tuple[int, ...]


class Pictures:
    """Turns the steps of one request into frames, and frames into pictures."""

    def __init__(self, tokenizer: Tokenizer | None, session: DecodeSession) -> None:
        self._tokenizer = tokenizer
        self._prompt_len = len(session.prompt)
        self._mask = session.vocabulary.mask_token_id
        self._eos = session.vocabulary.eos_token_id
        self._by_entropy = session.settings.ranking == "neg_entropy"
        self._decided: list[int] = []

    def frame(self, step: TraceStep) -> Frame:
        """The next step's frame."""
        self._decided += [0] * (len(step.canvas) - len(self._decided))
        for at, token in enumerate(step.canvas):
            if token != self._mask and not self._decided[at]:
                self._decided[at] = step.step
        return Frame(step, tuple(self._decided))

    def picture(self, frame: Frame) -> RenderableType:
        """Canvas and race side by side."""
        step = frame.step
        decided = sum(1 for at in frame.decided if at)
        title = (
            f"step {step.step} · {decided}/{len(step.canvas)} decided · {decided / step.step:.1f} per step"
        )
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(ratio=1)
        cells = [
            Panel(self.canvas(frame), title=title, title_align="left", border_style="dim", padding=(0, 1))
        ]
        if len(step.branches) > 1:
            table.add_column(width=46)
            cells.append(Panel(self.race(step), title="branches", title_align="left", border_style="dim"))
        table.add_row(*cells)
        return table

    def canvas(self, frame: Frame) -> Text:
        """The answer as it stands: tokens coloured by step, the newest ones bold."""
        text = Text()
        for token, decided in zip(frame.step.canvas, frame.decided, strict=True):
            if not decided:
                text.append(MASK, "dim")
            else:
                style = step_colour(decided) + (" bold underline" if decided == frame.step.step else "")
                text.append(self._show(token), "dim" if token == self._eos else style)
        return text

    def race(self, step: TraceStep) -> RenderableType:
        """Per evaluated branch what it tried, its confidence, and who won; the anchor first."""
        order = sorted(range(len(step.branches)), key=lambda at: bool(step.branches[at].fills))
        shown = order[:MAX_RACERS]
        if step.winner not in shown:
            shown[-1] = step.winner
        table = Table.grid(padding=(0, 1))
        for at in shown:
            branch = step.branches[at]
            won = at == step.winner
            tried = " ".join(
                f"{self._show(token).strip() or '␣'}@{p - self._prompt_len}" for p, token in branch.fills
            )
            table.add_row(
                Text("▶" if won else " ", "bold green"),
                Text(step.branch_name(at), "bold" if won else ""),
                Text(tried[:12], "cyan"),
                Text(self._bar(branch.confidence), "green" if won else "blue"),
                Text(f"{branch.confidence:.3f}", "bold" if won else "dim"),
            )
        hidden = len(order) - len(shown)
        return Group(table, Text(f"and {hidden} more", "dim")) if hidden else table

    def line(self, frame: Frame) -> str:
        """A plain snapshot, where nothing can be redrawn."""
        step = frame.step
        won = step.branch_name(step.winner)
        return f"step {step.step:>3}  {won:<6}  {self.canvas(frame).plain}"

    def _bar(self, confidence: float) -> str:
        share = math.exp(confidence) if self._by_entropy else confidence
        return ("━" * round(min(1.0, max(0.0, share)) * BAR_CELLS)).ljust(BAR_CELLS)

    def _show(self, token: int) -> str:
        if token == self._eos:
            return END
        text = f"{token} " if self._tokenizer is None else self._tokenizer.token_text(token)
        return text.replace("\n", "⏎").replace("\r", "").replace("\t", " ")


def step_colour(step: int) -> str:
    """Neighbouring steps get different hues."""
    red, green, blue = colorsys.hls_to_rgb((0.55 + 0.09 * step) % 1.0, 0.68, 0.65)
    return f"#{int(red * 255):02x}{int(green * 255):02x}{int(blue * 255):02x}"


class Watcher:
    """Draws steps from a thread of its own, so that drawing never holds up decoding."""

    def __init__(self, console: Console | None, tokenizer: Tokenizer | None, session: DecodeSession) -> None:
        """Without a console nothing is drawn, and frames are only kept for `save_svg`."""
        self._pictures = Pictures(tokenizer, session)
        self._console = console
        self._frames: list[Frame] = []
        self._queue: SimpleQueue[TraceStep | None] = SimpleQueue()
        self._thread = Thread(target=self._draw, daemon=True)
        self._abandoned = False

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._abandoned = kind is not None
        self._queue.put(None)
        self._thread.join()

    def on_step(self, _index: int, step: TraceStep) -> None:
        """Hand over a step."""
        self._queue.put(step)

    def _draw(self) -> None:
        console = self._console
        if console is None:
            self._follow(lambda frame: None, pace=False)
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                self._follow(
                    lambda frame: live.update(self._pictures.picture(frame), refresh=True), pace=True
                )
        else:
            self._follow(
                lambda frame: console.print(self._pictures.line(frame), markup=False, soft_wrap=True),
                pace=False,
            )

    def _follow(self, show: Callable[[Frame], None], *, pace: bool) -> None:
        while (step := self._queue.get()) is not None:
            frame = self._pictures.frame(step)
            self._frames.append(frame)
            if self._abandoned:
                continue
            show(frame)
            if pace:
                time.sleep(min(FRAME_SECONDS, LAG_SECONDS / (1 + self._queue.qsize())))

    def save_svg(self, path: Path) -> None:
        """Three moments of the decode, one below the other."""
        console = Console(
            record=True, width=120, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        last = len(self._frames) - 1
        for at in sorted({last // 3, 2 * last // 3, last}) if self._frames else ():
            console.print(self._pictures.picture(self._frames[at]))
        path.write_text(console.export_svg(title="lopa generate --watch"), encoding="utf-8")
