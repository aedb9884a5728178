"""Recorded cases: reading them, and what a case asks for in this project's words."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lopa_ray.decoders.fast_dllm import FINAL_NOISE
from lopa_ray.errors import LopaError, SettingsError
from lopa_ray.plan import Ranking
from lopa_ray.settings import D2FSettings, FastDllmSettings, GenerationSettings, LopaSettings

Status = Literal["passed", "differs", "not supported", "error", "skipped"]


class MalformedCaseError(LopaError):
    """A row is not what the format says."""


class UnsupportedCaseError(LopaError):
    """A row is well-formed, but records something that is not implemented here."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a file of recorded cases. `kind` is "forward", a decoder's or a sampler's name."""

    file: Path
    line: int
    id: str
    kind: str
    row: dict[str, Any]
    model: str
    lora: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as recorded; `round` is 1-based, 0 for the case as a whole."""

    what: str
    round: int
    expected: object
    got: object


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a case. `differences` start with the first, in the order of events."""

    file: Path
    line: int
    id: str
    kind: str
    status: Status
    reason: str = ""
    differences: tuple[Difference, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values: dict[str, Any] = {
            "id": self.id,
            "file": str(self.file),
            "line": self.line,
            "kind": self.kind,
            "status": self.status,
        }
        if self.reason:
            values["reason"] = self.reason
        if self.differences:
            first = self.differences[0]
            values["first"] = {
                "what": first.what,
                "round": first.round,
                "expected": first.expected,
                "got": first.got,
            }
            values["differs"] = list(dict.fromkeys(difference.what for difference in self.differences))
        return values


# Reading


def read_cases(path: Path) -> list[Case | Verdict]:
    """All rows of a file, in order; a verdict stands for each one that cannot be read.

    Raises SettingsError if there is no such file.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise SettingsError(f"cannot read cases {path}: {error.strerror}; give a JSONL file") from None
    return [_read_case(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read_case(path: Path, number: int, line: bytes) -> Case | Verdict:
    name, kind = f"{path.name}:{number}", "unknown"
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise MalformedCaseError(f"a case is a JSON object, got {type(row).__name__}")
        name = str(row.get("id", name))
        kind = _kind_of(row)
        lora = row.get("lora")
        if lora is not None:
            lora = _folder(row, "lora")
        return Case(path, number, name, kind, row, _folder(row, "model"), lora)
    except (ValueError, RecursionError) as error:
        return Verdict(path, number, name, kind, "error", f"not JSON: {error}")
    except MalformedCaseError as error:
        return Verdict(path, number, name, kind, "error", str(error))


def _kind_of(row: dict[str, Any]) -> str:
    """Files bear no type; each kind of row has keys of its own."""
    if "kind" in row:
        return str(row["kind"])
    settings = row.get("settings")
    if isinstance(settings, dict) and "algorithm" in settings:
        return str(settings["algorithm"])
    if isinstance(row.get("steps"), list):
        return "forward"
    raise MalformedCaseError(
        "no kind of case has these keys; wanted settings.algorithm, kind, or a list of steps"
    )


def _folder(row: dict[str, Any], key: str) -> str:
    name = row.get(key)
    if not isinstance(name, str) or not name or name in (".", "..") or Path(name).name != name:
        raise MalformedCaseError(f"{key}: got {name!r}; allowed: the name of a folder")
    return name


def token_ids(row: dict[str, Any], key: str) -> list[int]:
    """A list of ids. Raises MalformedCaseError."""
    ids = row.get(key)
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise MalformedCaseError(f"{key}: got {_short(ids)}; allowed: a list of token ids")
    return ids


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# What a case asks for


class _Recorded:
    """The settings of a row, each taken once and checked; whatever is left over is unknown."""

    def __init__(self, row: dict[str, Any]) -> None:
        values = row.get("settings")
        if not isinstance(values, dict):
            raise MalformedCaseError(f"settings: got {_short(values)}; allowed: an object")
        self._values = dict(values)

    def take(self, key: str, *types: type, default: Any = ...) -> Any:
        value = self._values.pop(key, None)
        if value is None and default is not ...:
            return default
        if type(value) not in types:
            allowed = " or ".join(kind.__name__ for kind in types)
            raise MalformedCaseError(f"settings.{key}: got {_short(value)}; allowed: {allowed}")
        return value

    def done(self) -> None:
        if self._values:
            raise UnsupportedCaseError(f"unknown settings {', '.join(sorted(self._values))}")


def _greedy(recorded: _Recorded) -> None:
    if recorded.take("temperature", int, float, default=0):
        raise UnsupportedCaseError("drawn tokens (temperature above 0) cannot be compared: the draws differ")


def _block_settings(row: dict[str, Any]) -> GenerationSettings:
    """Rows of LoPA's published decoder; `algorithm` is lopa or d2f."""
    recorded = _Recorded(row)
    take = recorded.take
    algorithm = take("algorithm", str)
    block_size = take("block_size", int)
    if block_size < 1:
        raise MalformedCaseError(f"settings.block_size: got {block_size}; allowed: 1 and more")
    top_p = take("top_p", int, float, default=None)
    strategy = take("sampling_strategy", str, default="default")
    _greedy(recorded)
    common: dict[str, Any] = {
        "block_size": block_size,
        "max_new_tokens": take("max_new_tokens", int) // block_size * block_size,
        "block_add_threshold": take("block_add_threshold", int, float),
        "decoded_token_threshold": take("decoded_token_threshold", int, float),
        "confidence_threshold": take("skip_threshold", int, float),
        # An unknown strategy means the default there, "margin_confidence" too.
        "ranking": strategy if strategy in ("margin", "neg_entropy") else "probability",
        "window_attention": "full" if take("use_full_attention", bool) else "block_causal",
        "stop_at_eos": False,
        "top_p": None if top_p is None or top_p >= 1 else top_p,
        "top_k": take("top_k", int, default=None),
    }
    take("max_length", int, default=None)
    single = algorithm == "d2f"
    lookaheads = take("branching_factor", int, **({"default": 1} if single else {}))
    ratio = min(1.0, max(0.0, take("branch_topp", int, float, default=1.0)))
    alpha = min(1.0, max(0.0, take("selection_conf_alpha", int, float, default=0.0)))
    keeps_base = take("branch_verification_mode", bool, default=True)
    competes = take("base_branch_competition", bool, default=True)
    base_wins = take("verification_force_base_winner", bool, default=False)
    recorded.done()
    if single:
        return D2FSettings(**common)
    if lookaheads <= 1 or (keeps_base and not competes):
        lookaheads = 0
    return LopaSettings(
        num_branches=max(1, lookaheads + keeps_base),
        anchor="omit" if not keeps_base else "win" if base_wins else "compete",
        branch_confidence=f"bottom({ratio})",
        creation_confidence_alpha=alpha,
        **common,
    )


_DREAM_RANKING: dict[str, Ranking] = {
    "entropy": "neg_entropy",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
}


def _dual_cache_settings(row: dict[str, Any]) -> GenerationSettings:
    """Rows of Fast-dLLM's dual cache for Dream, by threshold or by its fixed schedule."""
    recorded = _Recorded(row)
    take = recorded.take
    if not take("dual_cache", bool, default=True):
        raise UnsupportedCaseError("Fast-dLLM's prefix cache (dual_cache false) is not implemented")
    algorithm, steps = take("alg", str), take("steps", int, default=None)
    threshold = take("threshold", int, float, default=None)
    values: dict[str, Any] = {
        "block_size": take("block_length", int),
        "max_new_tokens": take("max_new_tokens", int),
        "stop_at_eos": False,
    }
    noise = take("eps", int, float, default=None)
    if noise not in (None, FINAL_NOISE):
        raise UnsupportedCaseError(f"eps {noise}: the schedule ends at {FINAL_NOISE} here")
    _greedy(recorded)
    recorded.done()
    if algorithm == "confidence_threshold":
        if threshold is None:
            raise MalformedCaseError("settings.threshold: missing; alg confidence_threshold needs it")
        return FastDllmSettings(confidence_threshold=threshold, **values)
    if algorithm not in _DREAM_RANKING:
        raise UnsupportedCaseError(
            f"alg {algorithm!r} is not implemented; known: {', '.join(_DREAM_RANKING)}"
        )
    return FastDllmSettings(fill="schedule", steps=steps, ranking=_DREAM_RANKING[algorithm], **values)


DECODES: dict[str, Callable[[dict[str, Any]], GenerationSettings]] = {
    "lopa": _block_settings,
    "d2f": _block_settings,
    "fast_dream_dual_cache": _dual_cache_settings,
    "fast_dream_dual_cache_entropy": _dual_cache_settings,
}
"""How the settings of each kind of recorded decode are said here."""


def decode_settings_of(case: Case) -> GenerationSettings:
    """The settings that reproduce a case. Raises MalformedCaseError and UnsupportedCaseError."""
    if case.kind not in DECODES:
        raise UnsupportedCaseError(
            f"{case.kind!r} is not implemented; known: {', '.join([*DECODES, 'forward'])}"
        )
    try:
        return DECODES[case.kind](case.row)
    except SettingsError as error:
        raise UnsupportedCaseError(f"settings refused: {error}") from None
