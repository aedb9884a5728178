"""What a recorded decode asks for, in this project's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lopa_ray.conformance.cases import Case, MalformedCaseError, UnsupportedCaseError, short
from lopa_ray.decoders.fast_dllm import FINAL_NOISE
from lopa_ray.errors import SettingsError
from lopa_ray.plan import Ranking
from lopa_ray.settings import D2FSettings, FastDllmSettings, GenerationSettings, LopaSettings


class _Recorded:
    """The settings of a row, each taken once and checked; whatever is left over is unknown."""

    def __init__(self, row: dict[str, Any]) -> None:
        values = row.get("settings")
        if not isinstance(values, dict):
            raise MalformedCaseError(f"settings: got {short(values)}; allowed: an object")
        self._values = dict(values)

    def take(self, key: str, *types: type, default: Any = ...) -> Any:
        value = self._values.pop(key, None)
        if value is None and default is not ...:
            return default
        if type(value) not in types:
            allowed = " or ".join(kind.__name__ for kind in types)
            raise MalformedCaseError(f"settings.{key}: got {short(value)}; allowed: {allowed}")
        return value

    def done(self) -> None:
        if self._values:
            raise UnsupportedCaseError(f"unknown settings {', '.join(sorted(self._values))}")


def _greedy(recorded: _Recorded) -> None:
    if recorded.take("temperature", int, float, default=0):
        raise UnsupportedCaseError("drawn tokens (temperature above 0) cannot be compared: the draws differ")


def _block_settings(row: dict[str, Any]) -> GenerationSettings:
    """Rows of LoPA's published decoder (`algorithm` lopa or d2f), and of D2F's for LLaDA."""
    recorded = _Recorded(row)
    take = recorded.take
    algorithm = take("algorithm", str, default="d2f")
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
        "window_attention": "full" if take("use_full_attention", bool, default=False) else "block_causal",
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
    "d2f_llada": _block_settings,
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
