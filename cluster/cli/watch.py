"""`lopa generate --watch`: the canvas as it fills, with the branches of each step beside it."""

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

MIN_FRAME_S = 0.12
"""How long a frame stays at least, unless drawing lags behind decoding."""

MAX_LAG_S = 3.0
"""How far drawing may lag behind."""

MAX_BRANCH_ROWS = 12
BAR_WIDTH = 16
MASK_SYMBOL, EOS_SYMBOL = "·", "∎"


@dataclass(frozen=True, slots=True)
class CanvasFrame:
    """One step, and for each position of the answer the number of the step that decided it (0: masked)."""

    step: TraceStep
    decided_in: tuple[int, ...]


class CanvasRenderer:
    """Turns the steps of one request into frames, and renders frames for a terminal."""

    def __init__(self, tokenizer: Tokenizer | None, session: DecodeSession) -> None:
        self._tokenizer = tokenizer
        self._prompt_len = len(session.prompt)
        self._eos_token_id = session.vocabulary.eos_token_id
        self._by_entropy = session.settings.ranking == "neg_entropy"
        self._given = session.given.tokens
        self._decided_in: list[int] = []

    def next_frame(self, step: TraceStep) -> CanvasFrame:
        """The frame of the step that follows the one of the last call."""
        self._decided_in += [0] * (len(step.canvas) - len(self._decided_in))
        for decision in step.decided:
            self._decided_in[decision.position - self._prompt_len] = step.step
        return CanvasFrame(step, tuple(self._decided_in))

    def render(self, frame: CanvasFrame) -> RenderableType:
        """Canvas and branches side by side."""
        step = frame.step
        decided = sum(1 for number in frame.decided_in if number)
        title = (
            f"step {step.step} · {decided}/{len(step.canvas) - len(self._given)} decided"
            f" · {decided / step.step:.1f} per step"
        )
        if step.depth > 1:
            title += f" · depth {step.depth}"
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(ratio=1)
        cells = [
            Panel(self.canvas(frame), title=title, title_align="left", border_style="dim", padding=(0, 1))
        ]
        if len(step.branches) > 1:
            table.add_column(width=46)
            cells.append(
                Panel(self.branch_table(step), title="branches", title_align="left", border_style="dim")
            )
        table.add_row(*cells)
        return table

    def canvas(self, frame: CanvasFrame) -> Text:
        """The answer as it stands: tokens coloured by step, the newest ones bold; plain what the request gives."""
        text = Text()
        for at, (token, decided_in) in enumerate(zip(frame.step.canvas, frame.decided_in, strict=True)):
            if at in self._given:
                text.append(self._token_text(token))
            elif not decided_in:
                text.append(MASK_SYMBOL, "dim")
            else:
                style = step_colour(decided_in) + (" bold underline" if decided_in == frame.step.step else "")
                text.append(self._token_text(token), "dim" if token == self._eos_token_id else style)
        return text

    def branch_table(self, step: TraceStep) -> RenderableType:
        """Per evaluated branch its fills, its confidence, and whether it won or was accepted.

        The anchor comes first, then accepted drafts.
        """
        order = sorted(
            range(len(step.branches)), key=lambda at: (bool(step.branches[at].fills), at not in step.accepted)
        )
        shown = order[:MAX_BRANCH_ROWS]
        if step.winner not in shown:
            shown[-1] = step.winner
        table = Table.grid(padding=(0, 1))
        for at in shown:
            branch = step.branches[at]
            won = at == step.winner
            counts = won or at in step.accepted
            tried = " ".join(
                f"{self._token_text(token).strip() or '␣'}@{p - self._prompt_len}"
                for p, token in branch.fills
            )
            table.add_row(
                Text("▶" if won else "✓" if counts else " ", "bold green"),
                Text(step.branch_name(at), "bold" if counts else ""),
                Text(tried[:12], "cyan"),
                Text(self._bar(branch.confidence), "green" if counts else "blue"),
                Text(f"{branch.confidence:.3f}", "bold" if counts else "dim"),
            )
        hidden = len(order) - len(shown)
        return Group(table, Text(f"and {hidden} more", "dim")) if hidden else table

    def render_line(self, frame: CanvasFrame) -> str:
        """One line of plain text, where nothing can be redrawn."""
        step = frame.step
        won = step.branch_name(step.winner)
        if step.depth > 1:
            won += f" depth {step.depth}"
        return f"step {step.step:>3}  {won:<6}  {self.canvas(frame).plain}"

    def _bar(self, confidence: float) -> str:
        share = math.exp(confidence) if self._by_entropy else confidence
        return ("━" * round(min(1.0, max(0.0, share)) * BAR_WIDTH)).ljust(BAR_WIDTH)

    def _token_text(self, token: int) -> str:
        if token == self._eos_token_id:
            return EOS_SYMBOL
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
        self._renderer = CanvasRenderer(tokenizer, session)
        self._console = console
        self._frames: list[CanvasFrame] = []
        self._queue: SimpleQueue[TraceStep | None] = SimpleQueue()
        self._thread = Thread(target=self._draw, daemon=True)
        self._aborted = False

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._aborted = kind is not None
        self._queue.put(None)
        self._thread.join()

    def on_step(self, _index: int, step: TraceStep) -> None:
        """Called by the engine after each step."""
        self._queue.put(step)

    def _draw(self) -> None:
        console = self._console
        if console is None:
            self._show_frames(lambda frame: None, pace=False)
        elif console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                self._show_frames(
                    lambda frame: live.update(self._renderer.render(frame), refresh=True), pace=True
                )
        else:
            self._show_frames(
                lambda frame: console.print(self._renderer.render_line(frame), markup=False, soft_wrap=True),
                pace=False,
            )

    def _show_frames(self, show: Callable[[CanvasFrame], None], *, pace: bool) -> None:
        while (step := self._queue.get()) is not None:
            frame = self._renderer.next_frame(step)
            self._frames.append(frame)
            if self._aborted:
                continue
            show(frame)
            if pace:
                time.sleep(min(MIN_FRAME_S, MAX_LAG_S / (1 + self._queue.qsize())))

    def save_svg(self, path: Path) -> None:
        """Three steps, one below the other."""
        console = Console(
            record=True, width=120, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        last = len(self._frames) - 1
        for at in sorted({last // 3, 2 * last // 3, last}) if self._frames else ():
            console.print(self._renderer.render(self._frames[at]))
        path.write_text(console.export_svg(title="lopa generate --watch"), encoding="utf-8")
