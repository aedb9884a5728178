"""The paper's tables (arXiv 2512.16229): results, and the settings behind them.

`published.json` beside this file has the numbers, copied from Tables 1 to 7. Figures 4 and 5 are not in it: they are
drawn, not printed.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict

from lopa_ray.errors import SettingsError

Metric = Literal["score", "tpf", "avg_tps", "max_tps", "top10_tps", "latency_s"]

TABLE_METRICS: dict[Metric, str] = {
    "score": "Accuracy or pass@1, in percent (0 to 100).",
    "tpf": "Tokens per forward: tokens generated ÷ forward rounds.",
    "avg_tps": "Tokens per second, mean over problems; without the first step, with what is behind the first EOS.",
    "max_tps": "The same of the fastest problem.",
    "top10_tps": "The same, mean over the ten fastest problems.",
    "latency_s": "Seconds per problem, mean.",
}
"""The metrics of the tables, with their meaning and unit."""


class _Published(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ResultRow(_Published):
    """A row of results."""

    model: str
    """What the paper calls it: D2F-Dream, D2F-Dream-Base, SDAR-4B-Chat."""
    row: str
    """Decoder (Tables 1 and 2), system (Table 3) or setting (Table 4); empty in Table 7, with a row per model."""
    results: dict[str, dict[Metric, float | None]]
    """Task → metric → value, in the units of `TABLE_METRICS`; None where the table has a dash."""


class DecodeSetting(_Published):
    """A row of Table 5: how a task of Tables 1 and 2 was decoded with LoPA."""

    model: str
    task: str
    shots: int
    """Solved examples before each problem."""
    block_size: int
    """Positions."""
    block_add_threshold: float
    decoded_token_threshold: float
    confidence_threshold: float
    branches: int
    """"LoPA branches"."""


class SystemSetting(_Published):
    """A row of Table 6: one of the settings S1 to S18 of Table 4."""

    setting: str
    system: Literal["LoPA-Dist-NV", "LoPA-Dist-Ascend"]
    """On GPUs, or on Ascend NPUs."""
    precision: Literal["bf16", "w8a8"]
    tp: int
    """Devices that a model is cut over (tensor parallel)."""
    bp: int
    """Devices, or groups of `tp` devices, that branches are spread over (branch parallel)."""
    block_size: int
    """Positions."""
    length: int
    """Positions of an answer."""
    block_add_threshold: float
    decoded_token_threshold: float
    confidence_threshold: float


class PublishedNumbers(_Published):
    """All of `published.json`."""

    source: str
    """Where the numbers are from, and how the paper counts."""
    results: dict[str, tuple[ResultRow, ...]]
    """table1, table2, table3, table4, table7."""
    decode_settings: tuple[DecodeSetting, ...]
    """Table 5."""
    system_settings: tuple[SystemSetting, ...]
    """Table 6."""


@cache
def published_numbers() -> PublishedNumbers:
    """The numbers that ship with the package."""
    text = files("lopa_lab.paper.tables").joinpath("published.json").read_text(encoding="utf-8")
    return PublishedNumbers.model_validate_json(text)


def published_table(name: str) -> tuple[ResultRow, ...]:
    """The rows of a table of results (`table1`), in its order. Raises SettingsError for any other name."""
    results = published_numbers().results
    if name not in results:
        raise SettingsError(f"table: got {name!r}; allowed: {', '.join(results)}")
    return results[name]


def decode_settings() -> tuple[DecodeSetting, ...]:
    """Table 5, in its order."""
    return published_numbers().decode_settings


def system_settings() -> tuple[SystemSetting, ...]:
    """Table 6, in its order."""
    return published_numbers().system_settings
