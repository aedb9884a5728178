"""Comparison: the cells of a table or figure of the paper, next to what the paper prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa_lab.paper.cell_run import CellRun
from lopa_lab.paper.cells import METRICS, Cell
from lopa_lab.paper.plots import branches_plot, fills_plot
from lopa_lab.records import markdown
from lopa_lab.records.small_sample import small_sample_note

KEYS = 2
"""Columns that name a cell."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The runs of a table's cells."""

    title: str
    runs: Mapping[Cell, CellRun]
    reasons: Mapping[Cell, str]
    """Why other cells that were asked for have none."""

    @property
    def header(self) -> list[str]:
        """Row and task; score and TPF, and each other metric that the paper prints for one of the cells."""
        metrics = [f"{name} / paper" if name in self._printed else name for name in self._metrics]
        return ["row", "task", *metrics, "tpf_to_eos", "problems"]

    @property
    def rows(self) -> list[list[str]]:
        """A line per run."""
        rows = []
        for cell, run in self.runs.items():
            line = [cell.row, cell.column]
            for name in self._metrics:
                published = cell.published.get(name)
                line.append(_number(run, name) + ("" if published is None else f" / {published:,}"))
            rows.append([*line, _number(run, "tpf_to_eos"), f"{len(run.records):,}"])
        return rows

    @property
    def notes(self) -> list[str]:
        """Notes on what limits the figures, and why cells were not run."""
        small = [small_sample_note(len(run.records)) for run in self.runs.values()]
        notes = [note for note in dict.fromkeys([*small, *(cell.note for cell in self.runs)]) if note]
        for reason in dict.fromkeys(self.reasons.values()):
            names = [cell.name for cell, why in self.reasons.items() if why == reason]
            notes.append(f"Not run: {'; '.join(names)}: {reason}")
        return notes

    def write(self, folder: Path) -> None:
        """Write comparison.md, and the plots of a figure. Needs matplotlib for these. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        images = []
        for caption, image in self._plots().items():
            file = folder / f"{file_name(caption)}.svg"
            file.write_text(image, encoding="utf-8")
            images.append(f"![{caption}]({file.name})")
        parts = [
            f"# {markdown.escape(self.title)}",
            markdown.table(self.header, self.rows),
            "\n".join(f"- {markdown.escape(note)}" for note in self.notes),
            *images,
            "\n".join(f"- **{name}**: {METRICS[name]}" for name in self._metrics),
            "Published: LoPA, arXiv 2512.16229. `tpf_to_eos` counts tokens up to and including the first EOS. Each "
            "cell's JSON file has its settings, machine and answers.",
        ]
        text = "\n\n".join(part for part in parts if part)
        (folder / "comparison.md").write_text(text + "\n", encoding="utf-8")

    @property
    def _printed(self) -> set[str]:
        return {name for cell in self.runs for name, value in cell.published.items() if value is not None}

    @property
    def _metrics(self) -> Sequence[str]:
        return [name for name in METRICS if name in self._printed | {"score", "tpf"}]

    def _plots(self) -> dict[str, str]:
        """Caption → SVG text, one per model and task of Figure 4 or 5."""
        curves: dict[str, dict[Cell, CellRun]] = {}
        for cell, run in self.runs.items():
            if cell.table in ("fig4", "fig5"):
                curves.setdefault(f"{cell.row.partition(' ')[0]}, {cell.column}", {})[cell] = run
        return {
            caption: branches_plot([*runs.values()])
            if next(iter(runs)).table == "fig4"
            else fills_plot({cell.row.partition(" ")[2]: run for cell, run in runs.items()})
            for caption, runs in curves.items()
        }


def file_name(text: str) -> str:
    """A name for a file about this."""
    return re.sub(r"[^a-z0-9+]+", "-", text.casefold()).strip("-")


def _number(run: CellRun, name: str) -> str:
    value = run.figures[name]
    if value is None:
        return "–"
    if name == "score":
        error = run.score_error
        return f"{value:.1f}" + ("" if error is None else f" ± {error:.1f}")
    return f"{value:,.{1 if name.endswith('tps') else 2}f}"
