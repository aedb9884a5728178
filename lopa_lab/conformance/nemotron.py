"""Rows of Nemotron-Labs-Diffusion's published decoders: their settings, and their calls against the calls made here.

Two kinds of calls of `generate` are not made here: the last block is stored there, though nothing reads it, and a seed
that ends the answer does not end it at once. Self-speculation goes on there until it has the requested number of
tokens, and returns all that it has then. Here the number is exact, so the request has room for more, and its calls are
compared as far as they are recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings

NO_EOS = -1
"""The id that never ends an answer."""


def _end(recorded: RowSettings) -> dict[str, Any]:
    """The settings for a row's EOS: the checkpoint's id, another id, or none."""
    eos = recorded.pop("eos_token_id", int, default=None)
    if eos is None:
        return {}
    return {"ignore_eos": True, "stop_token_ids": () if eos == NO_EOS else (eos,)}


def nemotron_settings(recorded: RowSettings) -> tuple[type[NemotronSettings], dict[str, Any]]:
    """Rows of `generate`."""
    pop = recorded.pop
    return NemotronSettings, {
        "max_new_tokens": pop("max_new_tokens", int),
        "block_size": pop("block_length", int),
        "confidence_threshold": recorded.pop_threshold("threshold", default=None),
        "causal_context": pop("causal_context", bool, default=True),
        "max_thinking_tokens": pop("max_thinking_tokens", int, default=None),
        "end_think_token_id": pop("end_think_token_id", int, default=None),
        **_end(recorded),
    }


def autoregressive_settings(recorded: RowSettings) -> tuple[type[NemotronSettings], dict[str, Any]]:
    """Rows of `ar_generate`."""
    return NemotronSettings, {
        "max_new_tokens": recorded.pop("max_new_tokens", int),
        "block_size": 1,
        **_end(recorded),
    }


def speculation_settings(recorded: RowSettings) -> tuple[type[GenerationSettings], dict[str, Any]]:
    """Rows of `linear_spec_generate`, with room for the tokens that are returned beyond the requested number."""
    block = recorded.pop("block_length", int)
    return SelfSpeculationSettings, {
        "drafting": "separate",
        "max_new_tokens": recorded.pop("max_new_tokens", int) + 2 * block,
        "block_size": block,
        "confidence_threshold": recorded.pop_threshold("threshold", default=0.0),
        **_end(recorded),
    }


def compare_nemotron(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """The calls, what each decided and how probable that was, and the answer."""
    compare = _compare_speculation if case.kind.startswith("nld_spec") else _compare_generate
    yield from compare(case, run)


def _windows(run: ReplayedRun) -> list[list[object]]:
    """[start, length, causal or bidirectional, stored] of each call."""
    windows: list[list[object]] = []
    for plan, _ in run.rounds:
        kind = "c" if plan.branches[0].causal_stop else "b"
        windows.append([plan.start, len(plan.canvas), kind, int(bool(plan.branches[0].to_stage))])
    return windows


def _compare_generate(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    row, tokens = case.row, token_ids(case.row, "tokens")
    windows, fill_step = row["windows"], row["fill_step"]
    is_plain = case.kind == "nld_ar"
    # The published count leaves the prompt's call out, but not in autoregressive decoding.
    if row["nfe"] != len(windows) - (not is_plain):
        raise MalformedCaseError(f"nfe: got {row['nfe']} with {len(windows)} windows")
    got_windows = _windows(run)
    last = _last_call(case, run)
    yield from check("calls", 0, last, len(got_windows))
    for number, (expected, got) in enumerate(zip(windows[:last], got_windows, strict=False), 1):
        yield from check("windows", number, expected, got)
    decisions = {d.position - run.prompt_len: (o.step, d) for _, o in run.rounds for d in o.filled}
    yield from check("tokens", 0, tokens, run.tokens[: len(tokens)])
    filled = [at for at, call in enumerate(fill_step) if call]
    got_fill = [decisions[at][0] if at in decisions else 0 for at in filled]
    yield from check("fill_step", 0, [fill_step[at] for at in filled], got_fill)
    put_in = [at for at in range(len(tokens)) if not fill_step[at]]
    yield from check("put in", 0, put_in, [at for at in put_in if decisions[at][1].probability == 1.0])
    got_conf = [decisions[at][1].probability for at in filled]
    yield from check_close("fill_conf", 0, [row["fill_conf"][at] for at in filled], got_conf)
    answer = _through_end(row, run.tokens, run.eos_token_id)
    if answer != tokens:
        yield Difference("end", 0, len(tokens), len(answer))


def _last_call(case: Case, run: ReplayedRun) -> int:
    """How many of the recorded calls are made here: up to the call that gives the last token of an answer that ends,
    else all but the call that stores the last block."""
    row, windows = case.row, case.row["windows"]
    if case.kind == "nld_ar":
        return len(windows)
    eos = row["settings"].get("eos_token_id", run.eos_token_id)
    if eos not in token_ids(row, "tokens"):
        return len(windows) - 1
    # A token that is put in comes with the call that stores what is before its block.
    size = row["settings"]["block_length"]
    stored = {start + length: call for call, (start, length, _, stores) in enumerate(windows, 1) if stores}
    last = max(
        call or stored.get(run.prompt_len + at // size * size, 0) for at, call in enumerate(row["fill_step"])
    )
    if last >= len(windows):
        raise MalformedCaseError(f"fill_step: got call {last}; allowed: a call before the last window")
    return last


def _through_end(row: dict[str, Any], tokens: list[int], eos_token_id: int) -> list[int]:
    """The tokens up to the first EOS of the row."""
    eos = row["settings"].get("eos_token_id", eos_token_id)
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens


def _compare_speculation(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    row, tokens = case.row, token_ids(case.row, "tokens")
    windows = row["windows"]
    if row["nfe"] != len(windows):
        raise MalformedCaseError(f"nfe: got {row['nfe']} with {len(windows)} windows")
    eos = row["settings"].get("eos_token_id", run.eos_token_id)
    ended = eos in tokens
    rounds = run.rounds if ended else run.rounds[: len(windows)]
    yield from check("calls", 0, len(windows), len(rounds))
    yield from check("windows", 0, windows, _windows(run)[: len(rounds)])
    decided = [(outcome.step, decision) for _, outcome in rounds for decision in outcome.filled]
    yield from check("tokens", 0, tokens, [decision.token for _, decision in decided])
    yield from check("fill_step", 0, row["fill_step"], [step for step, _ in decided])
    yield from check_close("fill_conf", 0, row["fill_conf"], [d.probability for _, d in decided])
    verified = [outcome for plan, outcome in rounds[1:] if plan.branches[0].causal_stop]
    accepted = [len(outcome.filled) for outcome in verified]
    if ended and accepted:
        # Tokens taken after EOS are counted there, and cut.
        accepted[-1] = max(accepted[-1], min(row["accepted"][-1], row["settings"]["block_length"]))
    yield from check("accepted", 0, row["accepted"], accepted)
    if not ended and len(tokens) < row["settings"]["max_new_tokens"]:
        raise MalformedCaseError(f"tokens: got {len(tokens)}; allowed: as many as requested, or an end")
