"""`lopa models`: the families and published checkpoints that can be run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lopa_ray.config.yaml_files import read_config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_files import WORDS
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.transformers_models.families import TRANSFORMERS_FAMILIES

_BEGIN = (
    "To begin on a CPU: smollm2, which writes English and fetches 93 MB (docs/smollm2.md), and demo, the small model "
    "in this package. On a GPU of 24 GB or more: Dream-org/Dream-v0-Instruct-7B with --config d2f-dream-7b. This "
    "project has run smollm2 and demo; the others are checked against recorded decodes of small models with their code."
)
_LEGEND = (
    "Checkpoints on the Hugging Face Hub by family: weights in bfloat16, settings for --config (with --model NAME "
    "where their name is another one's), the adapter of these settings, and what their authors published (TPF: tokens "
    "per forward pass). `lopa models NAME` computes what a checkpoint needs in all formats, and `lopa models WORD` "
    "lists those whose lines have the word."
)
_OTHERS = (
    "model.implementation transformers runs other causal language models of transformers too, if their config.json "
    "names a mask_token_id (docs/models.md)."
)

PIPE_COLUMNS = 1000
WIDE_COLUMNS = 170  # so wide a terminal has a column for each of name, preset and adapter
NARROW_COLUMNS = 80


def known_families() -> list[dict[str, Any]]:
    """Native families first; `model.implementation` auto takes the first of a family's implementations."""
    return [
        {
            "family": family.name,
            "implementations": implementations,
            "checked_against": family.checked_against,
            "checkpoints": [
                {**asdict(row), "family": family.name, "adapter": _adapter(row.preset)}
                for row in family.checkpoints
            ],
        }
        for implementations, families in (
            (["native", "transformers"], FAMILIES),
            (["transformers"], TRANSFORMERS_FAMILIES),
        )
        for family in families
    ]


def _adapter(preset: str | None) -> str | None:
    return None if preset is None else read_config(preset)["model"].get("lora")


def checkpoints_table(families: Sequence[Mapping[str, Any]], columns: int) -> Table:
    """The published checkpoints. In few columns preset and adapter are below the name, in very few all is."""
    wide, narrow = columns >= WIDE_COLUMNS, columns < NARROW_COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Hub name", overflow="fold", no_wrap=not narrow)
    if wide:
        table.add_column("--config")
        table.add_column("adapter")
    if not narrow:
        table.add_column("weights", justify="right", no_wrap=True)
        table.add_column("published")
    for family in families:
        for row in family["checkpoints"]:
            weights = f"{row['weights_gib']:.1f} GiB"
            preset, adapter, figures = row["preset"] or "", row["adapter"] or "", row["figures"]
            below = [] if wide else ["--config " * bool(preset) + preset, "+ " * bool(adapter) + adapter]
            below += [weights, figures] if narrow else []
            name = Text(row["name"], "bold")
            name.append("".join(f"\n{line}" for line in below if line), "not bold")
            table.add_row(name, *map(Text, [preset, adapter] * wide + [weights, figures] * (not narrow)))
        if family["checkpoints"]:
            table.add_section()
    return table


def families_table(families: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("family", "model.implementation", "checked against", box=SIMPLE_HEAD, pad_edge=False)
    for family in families:
        row = (family["family"], ", ".join(family["implementations"]), family["checked_against"])
        table.add_row(*map(Text, row))
    return table


def print_families(word: str | None, *, as_json: bool) -> None:
    """`word`: list the checkpoints alone whose family, name, preset, adapter or figures have it. Raises SettingsError
    if there is none."""
    families = known_families()
    if word is not None:
        families = [family for family in (_with_word(family, word.lower()) for family in families) if family]
        if not families:
            words = {part for row in known_families() for part in re.split(r"\W+", str(row).lower())}
            near = get_close_matches(word.lower(), words, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise SettingsError(
                f"got {word!r}; {hint}allowed: a folder with a config.json, a name on the Hub as org/name, "
                f"{', '.join(WORDS)}, or a word that a line of `lopa models` has"
            )
    if as_json:
        print("\n".join(json.dumps(row) for row in families))
        return
    console = console_for_lines()
    if word is not None:
        console.print(checkpoints_table(families, console.width))
        return
    console.print(_BEGIN, _LEGEND, checkpoints_table(families, console.width), sep="\n")
    console.print(families_table(families), _OTHERS, sep="\n")


def _with_word(family: Mapping[str, Any], word: str) -> dict[str, Any] | None:
    rows = [row for row in family["checkpoints"] if word in " ".join(map(str, row.values())).lower()]
    return {**family, "checkpoints": rows} if rows else None


def console_for_lines() -> Console:
    """A console for stdout. A pipe and a file have lines of any length."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_COLUMNS)
