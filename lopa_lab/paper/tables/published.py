"""The results in the paper's tables (arXiv 2512.16229).

`published.json` beside this file has the numbers, copied from Tables 1 to 7. Its rows of Tables 5 and 6 are settings,
which the presets have. Figures 4 and 5 are not in it: they are drawn, not printed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from lopa_ray.errors import SettingsError

METRICS = {
    "score": "Accuracy or pass@1, in percent (0 to 100).",
    "tpf": "Tokens per forward: tokens generated ÷ forward rounds.",
    "avg_tps": "Tokens per second, mean over problems; without the first step, with what is behind the first EOS.",
    "max_tps": "The same of the fastest problem.",
    "top10_tps": "The same, mean over the ten fastest problems.",
    "latency_s": "Seconds per problem, mean.",
}
"""The metrics of the tables, with their meaning and unit."""


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A row of results."""

    model: str
    """What the paper calls it: D2F-Dream, D2F-Dream-Base, SDAR-4B-Chat."""
    row: str
    """Decoder (Tables 1 and 2), system (Table 3) or setting (Table 4); empty in Table 7, with a row per model."""
    results: Mapping[str, Mapping[str, float | None]]
    """Task → metric → value, in the units of `METRICS`; None where the table has a dash."""


def published_table(name: str) -> tuple[ResultRow, ...]:
    """The rows of a table of results (`table1`), in its order. Raises SettingsError for any other name."""
    text = files("lopa_lab.paper.tables").joinpath("published.json").read_text(encoding="utf-8")
    results = json.loads(text)["results"]
    if name not in results:
        raise SettingsError(f"table: got {name!r}; allowed: {', '.join(results)}")
    return tuple(ResultRow(**row) for row in results[name])
