"""Rows of MultiBD's published engine: its settings, where it ends a request, and its calls against the calls made here.

The engine counts the blocks that wait in its buffer as part of the answer, and ends a request by a limit with blocks
unfinished. Here blocks are finished, so the request runs further. Which of its calls would have been the last there,
and for what reason, follows from the published rules and from the run alone, and is compared with the row. What later
calls decide is not recorded.

Two kinds of calls are not made here. A prompt of whole blocks has a first call of its own there, which decides nothing;
here the first block is fed along. And the last blocks of an answer are stored there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.protocol.outcome import BlockView, Decision

MAX_MODEL_LEN = 512
"""The engine's default of `max_model_len`."""

CONFIDENCE_TOLERANCE = 5e-4
"""The engine's naive samplers leave the mask token out of the softmax; here it is part of it, and never chosen."""

AUTO_LIMIT_CALLS = 8
"""Calls after which the engine sets a limit if there is no `max_nfe`, from the tokens that they have filled."""

STATES = {"active": "A", "to_cache": "T", "in_cache": "C"}


def multi_block_settings(recorded: RowSettings) -> tuple[type[MultiBlockSettings], dict[str, Any]]:
    """The settings of a row, with room for all blocks that the engine may have run before it ends the request."""
    pop = recorded.pop
    prompt, block, buffer = (
        len(token_ids(recorded.row, "prompt")),
        pop("block_size", int),
        pop("buffer_size", int),
    )
    whole_blocks = -(-(prompt + pop("max_tokens", int)) // block) * block
    is_sdar = pop("model_name", str) == "sdar"
    accept = recorded.pop_threshold("accept_threshold")
    values: dict[str, Any] = {
        "block_size": block,
        "max_blocks": buffer,
        "max_new_tokens": max(whole_blocks, prompt - prompt % block + buffer * block) - prompt,
        "block_add_threshold": pop("add_block_threshold", int, float),
        # SDAR's sampler has a threshold of its own, and no use for the request's.
        "confidence_threshold": recorded.pop_threshold("sampler_threshold", default=0.95)
        if is_sdar
        else accept,
        "ignore_eos": pop("ignore_eos", bool, default=False),
        "stop_at_eos": False,
    }
    complete = pop("semi_complete_threshold", int, float)
    edits = {
        "editing_threshold": recorded.pop_threshold("edit_threshold", default=0.0),
        "max_post_steps": pop("max_post_edit_steps", int, default=16),
        "stability_threshold": pop("token_stability_threshold", int, float, default=0.0),
    }
    # They end the run there, and are read again where the calls are compared.
    for name in ("max_nfe", "max_model_len", "max_repetition_run"):
        pop(name, int, default=None)
    if pop("sampling_mode", str, default="naive") != "naive":
        return MultiBlockSettings, values | edits
    if edits["stability_threshold"]:
        # Naive samplers call a block stable when it has no mask.
        values["block_add_threshold"] = 1.0
    return MultiBlockSettings, {**values, "decoded_token_threshold": complete}


@dataclass(frozen=True, slots=True)
class PublishedCall:
    """A call of the published engine, as the run here implies it."""

    number: int
    length: int
    """Positions after the prompt once the call has ended, waiting blocks included."""
    stored: range
    window_stop: int
    blocks: tuple[BlockView, ...]
    canvas: tuple[int, ...]
    decisions: tuple[Decision, ...]


def _published_calls(row: dict[str, Any], run: ReplayedRun) -> Iterator[PublishedCall]:
    """The calls of the run, numbered as there, between calls that are not made here."""
    block, prompt = row["settings"]["block_size"], run.prompt_len
    first = prompt - prompt % block
    length = first + row["settings"]["buffer_size"] * block - prompt
    number = 0
    cached = BlockView(0, first, "in_cache", 0, True)
    if prompt == first:
        number = 1
        yield PublishedCall(number, length, range(first), first, (cached,), (), ())
    last = run.rounds[-1][1]
    for plan, outcome in run.rounds:
        spans = () if outcome.commit is None else outcome.commit.spans
        stored = range(max(spans[0].start, number and first), spans[0].stop) if spans else range(0)
        number, length = number + 1, length + max(0, stored.stop - max(stored.start, first))
        stop = plan.start + len(plan.canvas)
        yield PublishedCall(number, length, stored, stop, outcome.blocks, outcome.canvas, outcome.filled)
    waiting = [view for view in last.blocks if view.state == "to_cache"]
    stored = range(waiting[0].start, waiting[-1].stop)
    blocks = tuple(replace(view, state="in_cache") for view in last.blocks)
    yield PublishedCall(number + 1, length + len(stored), stored, stored.stop, blocks, last.canvas, ())


def _run_length(ids: Sequence[int]) -> int:
    """The number of times that the last token is repeated at the end."""
    return next((at for at, token in enumerate(reversed(ids)) if token != ids[-1]), len(ids))


def _ended_calls(row: dict[str, Any], run: ReplayedRun) -> tuple[list[PublishedCall], str]:
    """The calls up to that after which the published engine ends the request, and its reason."""
    settings = row["settings"]
    calls: list[PublishedCall] = []
    max_tokens, max_nfe = settings["max_tokens"], settings.get("max_nfe")
    last_blocks: set[int] = set()
    marks_last = True
    for call in _published_calls(row, run):
        calls.append(call)
        if max_nfe is None and call.number >= AUTO_LIMIT_CALLS:
            filled = sum(token != run.mask_token_id for token in call.canvas)
            max_nfe = max(call.number, math.ceil(max_tokens / max(1, filled / call.number)))
        has_eos = not settings.get("ignore_eos") and run.eos_token_id in call.canvas
        in_flight = [view for view in call.blocks[1:] if view.state != "in_cache"]
        if has_eos and in_flight and marks_last:
            last_blocks.add(in_flight[-1].stop)
            marks_last = len(in_flight) < settings["buffer_size"]
        cached_stop = max(view.stop for view in call.blocks if view.state == "in_cache")
        if call.length >= max_tokens:
            return calls, "max_new_tokens_reached"
        if run.prompt_len + call.length >= settings.get("max_model_len", MAX_MODEL_LEN):
            return calls, "max_model_len_reached"
        if max_nfe is not None and call.number >= max_nfe:
            return calls, "max_nfe_reached"
        if call.canvas and _run_length(call.canvas) >= settings.get("max_repetition_run", math.inf):
            return calls, "max_repetition_run_reached"
        if has_eos and cached_stop in last_blocks and not any(view.masks for view in in_flight):
            return calls, "eos_token_generated"
    return calls, "none"


def _answer(
    row: dict[str, Any], run: ReplayedRun, call: PublishedCall, canvas: list[int], reason: str
) -> list[int]:
    """The tokens that the published engine returns: all of a canvas before the first EOS, or up to a limit."""
    settings = row["settings"]
    if run.eos_token_id in canvas and not settings.get("ignore_eos"):
        return canvas[: canvas.index(run.eos_token_id)]
    if reason in ("max_nfe_reached", "max_repetition_run_reached"):
        return list(call.canvas)
    room = settings.get("max_model_len", MAX_MODEL_LEN) - run.prompt_len
    return canvas[: min(settings["max_tokens"], room)]


def compare_multi_block(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what each call saw, stored, filled and edited, the state of every block after it, when and why the
    published engine ends the request, and the answer, with the masks that are in it then."""
    row, block = case.row, case.row["settings"]["block_size"]
    calls, reason = _ended_calls(row, run)
    yield from check("nfe", 0, row["nfe"], calls[-1].number)
    yield from check("calls", 0, len(row["trace"]), len(calls))
    yield from check("reason", 0, row["reason"], reason)
    tokens: dict[int, int] = {}
    confidences: dict[int, float] = {}
    for recorded, call in zip(row["trace"], calls, strict=False):
        number = call.number
        yield from check("window", number, recorded["c"] + recorded["n"], call.window_stop)
        stored = [at // block for at in call.stored if at % block == 0]
        yield from check("stored blocks", number, recorded.get("tc", []), stored)
        fills, edits = [], []
        for decision in call.decisions:
            position, token = decision.fill
            if position in tokens:
                edits.append([position, tokens[position], token])
            else:
                fills.append([position, token])
                confidences[position - run.prompt_len] = decision.probability
            tokens[position] = token
        yield from check("fills", number, sorted(recorded.get("f", [])), sorted(fills))
        yield from check("edits", number, sorted(recorded.get("ed", [])), sorted(edits))
        states = "".join(STATES[view.state] * ((view.stop - view.start) // block) for view in call.blocks)
        waiting = (run.prompt_len + call.length) // block - len(states)
        yield from check("blocks", number, recorded["st"], states + "D" * waiting)
    last = calls[-1]
    canvas = [*last.canvas, *[run.mask_token_id] * (last.length - len(last.canvas))]
    yield from check("canvas", 0, row["canvas"], canvas)
    yield from check("tokens", 0, token_ids(row, "tokens"), _answer(row, run, last, canvas, reason))
    filled = sorted(confidences)
    recorded_confidences = [row["fill_conf"][at] for at in filled]
    got_confidences = [confidences[at] for at in filled]
    yield from check_close("fill_conf", 0, recorded_confidences, got_confidences, CONFIDENCE_TOLERANCE)
