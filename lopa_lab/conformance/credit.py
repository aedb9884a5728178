"""CreditDecoding's recorded decodes: their settings, dInfer's blocks and refreshes, and the comparison of calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, UnsupportedCaseError, token_ids
from lopa_lab.conformance.readers import RecordedSettings
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSession, FastDllmSettings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import Branch

_OF_LOOPS = ("start_block_align", "eos_id", "early_stop", "maximum_unroll", "expected_tpf", "use_float64")
"""Settings that say which calls dInfer's loops make, or at which precision."""


def credit_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of dInfer's loops with its credit decoder. Raises as `recorded_settings`."""
    pop = recorded.pop
    if recorded.row.get("generated_before"):
        raise UnsupportedCaseError("credit from an earlier request: here no request changes another")
    values: dict[str, Any] = {
        "confidence_threshold": recorded.pop_threshold("threshold"),
        **{name: pop(name, int, float) for name in ("credit_alpha", "boost_gamma", "decay_beta")},
        "stop_at_eos": False,
    }
    for name in _OF_LOOPS:
        pop(name, int, bool, default=None)
    pop("cache_update_freq", int, default=None)
    cache = pop("cache", str, default="none")
    if pop("mode", str) == "block_causal":
        block, max_new_tokens = recorded.pop_whole_blocks()
        size = {"block_size": block, "max_new_tokens": max_new_tokens}
        return BlockDiffusionSettings, {**values, **size, "fuse_store": True}
    size = {"block_size": pop("block_length", int), "max_new_tokens": pop("gen_length", int)}
    return FastDllmSettings, {**values, **size, "cache": cache}


def published_credit(session: DecodeSession, row: dict[str, Any]) -> DecodeSession:
    """The session in place of one that has not begun, as dInfer's loops call it."""
    if not isinstance(session, FastDllmSession):
        return session

    class Published(PublishedCreditSession):
        loop = row["settings"]

    return Published(session.prompt, session.settings, session.vocabulary)


class PublishedCreditSession(FastDllmSession):
    """Blocks may begin within the prompt, caches may be refreshed within a block, and a block with an EOS is the last.

    An iteration is a call with the cache, or one for the cache and one with it. dInfer looks whether a block is done
    only after several of them; those after the last fill count, and are not made here.
    """

    loop: dict[str, Any]
    """The row's settings."""

    def _begin(self) -> None:
        self._iteration, self._refreshed, self._is_last = 0, False, False
        super()._begin()

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._unrolled = self._unroll()

    def _unroll(self) -> int:
        masks = len(self._canvas.masked_positions(self._block))
        iterations: int = min(masks // self.loop["expected_tpf"], self.loop["maximum_unroll"])
        return max(1, iterations)

    def _block_at(self, position: int) -> range:
        if not self.loop["start_block_align"]:
            return super()._block_at(position)
        size = self.settings.block_size or self.settings.max_new_tokens
        start = position - position % size
        return range(start, min(start + size, self.max_len))

    def _window(self) -> Window:
        every = self.loop.get("cache_update_freq")
        if every and self._iteration % every == 0 and not self._refreshed:
            total = self.max_len
            return Window(range(total), ((total, total),), self._block, to_stage=self._cached_spans)
        return super()._window()

    def _end_step(self, branch: Branch) -> None:
        self._refreshed = bool(branch.to_stage)
        if not self._refreshed:
            self._iteration, self._unrolled = self._iteration + 1, self._unrolled - 1
        if self._block_is_final:
            self._iteration += self._unrolled
            block = self._canvas.ids[self._block.start : self._block.stop]
            self._refreshed, self._is_last = False, self.loop["eos_id"] in block
        elif not self._unrolled:
            self._unrolled = self._unroll()
        if not self._is_last:
            super()._end_step(branch)

    @property
    def exhausted(self) -> bool:
        return self._is_last or super().exhausted


def compare_credit(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """What each call filled, how probable it was with credit and without, and the answer. Calls after a block's last
    fill are recorded, and not made here."""
    row, settings = case.row, case.row["settings"]
    calls = [call for call in row["trace"] if call["by"] != "none"]
    yield from check("calls", 0, len(calls), len(run.rounds))
    for number, (recorded, (plan, outcome)) in enumerate(zip(calls, run.rounds, strict=False), 1):
        filled = sorted(outcome.filled, key=lambda decision: decision.position)
        if settings["mode"] != "block_causal":
            yield from check("in", number, recorded["in"], [plan.start - run.prompt_len, len(plan.canvas)])
        fills = [[d.position - run.prompt_len, d.token] for d in filled]
        yield from check("fills", number, [fill[:2] for fill in recorded["f"]], fills)
        yield from check_close("c", number, [f[2] for f in recorded["f"]], [d.probability for d in filled])
        plain = [math.exp(decision.logprob) for decision in filled]
        yield from check_close("p", number, [f[3] for f in recorded["f"]], plain)
    left = settings["eos_id"] if settings["early_stop"] else run.mask_token_id
    tokens = [left if token == run.mask_token_id else token for token in run.tokens]
    yield from check("tokens", 0, token_ids(row, "tokens"), tokens)
