"""KLASS's recorded decodes: how their settings are read, where published runs end, and the comparison of calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, UnsupportedCaseError, token_ids
from lopa_lab.conformance.readers import RecordedSettings
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoders.klass import KlassSession, KlassSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSession, VanillaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.sampling_params import Ranking

_RANKINGS: dict[str, Ranking] = {
    "default": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}


def klass_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of KLASS on LLaDA and Dream. LLaDA's function has other rules as well. Raises as `recorded_settings`."""
    pop = recorded.pop
    is_dream = recorded.row["kind"] == "klass_dream"
    values: dict[str, Any] = {
        "max_new_tokens": pop("max_new_tokens" if is_dream else "gen_length", int),
        "block_size": None if is_dream else pop("block_length", int),
        "steps": pop("steps", int),
        "stop_at_eos": False,
    }
    of_klass = {
        "confidence_threshold": recorded.pop_threshold("conf_threshold"),
        "kl_threshold": pop("kl_threshold", int, float),
        "kl_history_length": pop("kl_history_length", int),
        "unmask_strategy": pop("unmask_strategy", str),
    }
    algorithm = pop("alg", str, default="klass")
    if algorithm == "klass":
        filters = {"top_k": pop("top_k", int, default=None), "top_p": pop("top_p", float, default=None)}
        return KlassSettings, values | of_klass | filters
    if algorithm not in _RANKINGS:
        raise UnsupportedCaseError(f"alg {algorithm!r} is unknown; known: klass, {', '.join(_RANKINGS)}")
    return VanillaSettings, values | {"ranking": _RANKINGS[algorithm]}


def published_klass(session: DecodeSession, row: dict[str, Any]) -> DecodeSession:
    """The session in place of one that has not begun, with the ends and the signs of the published code."""
    if isinstance(session, KlassSession):
        return PublishedKlassSession(session.prompt, session.settings, session.vocabulary)
    assert isinstance(session, VanillaSession)
    if session.settings.ranking != "neg_entropy":
        return session
    return MostUncertainSession(session.prompt, session.settings, session.vocabulary)


class PublishedKlassSession(KlassSession):
    """A block ends after the calls that it has, even if masks are left, and these stay."""

    @property
    def _block_is_final(self) -> bool:
        return super()._block_is_final or self._calls >= self._block_steps

    @property
    def exhausted(self) -> bool:
        return self._block_is_final and self._block.stop == self.max_len


class MostUncertainSession(VanillaSession):
    """A schedule that fills the positions of the highest entropies first."""

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        return sorted(scores, key=lambda p: scores[p].score)[: self._scheduled_fill_count(self._calls)]


def compare_klass(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """What each call filled, how probable it was without filters, and the answer."""
    row = case.row
    yield from check("forward_calls", 0, row["forward_calls"], len(run.rounds))
    shows_probability = row["settings"].get("alg", "klass") in ("klass", "default")
    for number, (recorded, (_, outcome)) in enumerate(zip(row["trace"], run.rounds, strict=False), 1):
        filled = sorted(outcome.filled, key=lambda decision: decision.position)
        fills = [[decision.position - run.prompt_len, decision.token] for decision in filled]
        yield from check("fills", number, [fill[:2] for fill in recorded["f"]], fills)
        if shows_probability:
            expected = [fill[2] for fill in recorded["f"]]
            yield from check_close("conf", number, expected, [math.exp(d.logprob) for d in filled])
    yield from check("tokens", 0, token_ids(row, "tokens"), run.tokens)
