"""Rows of LLaDA2.2's decoder in SGLang: their settings, and their calls against the calls made here.

Two kinds of calls are not made here: for the K/V of whole blocks of the prompt, which the first call on the answer
feeds along, and for those of a block whose last call changed it, which the next block's first call feeds along.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.indel import IndelSettings


def indel_settings(recorded: RowSettings) -> tuple[type[IndelSettings], dict[str, Any]]:
    """The answer has whole blocks, counted from position 0."""
    pop, prompt = recorded.pop, len(token_ids(recorded.row, "prompt"))
    block, length = pop("block_size", int), pop("max_new_tokens", int)
    # Neither another scheduler nor masks in the prompt change anything.
    pop("fdfo", bool, default=False), pop("explicit_prompt_mask", bool, default=False)
    thresholds = {
        "confidence_threshold": recorded.pop_threshold("threshold", default=None),
        "editing_threshold": recorded.pop_threshold("edit_threshold", default=None),
        "max_post_steps": pop("max_post_edit_steps", int, default=None),
    }
    ends = pop("eos_token_ids", list, default=None)
    return IndelSettings, {
        "block_size": block,
        "max_new_tokens": -(-(prompt + length) // block) * block - prompt,
        **{name: value for name, value in thresholds.items() if value is not None},
        **({} if ends is None else {"ignore_eos": True, "stop_token_ids": tuple(ends)}),
    }


def compare_indels(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what each call saw, wrote and moved, and the answer."""
    row = case.row
    calls = [call for call in row["trace"] if not call.get("prefill") and not call.get("persist")]
    yield from check("steps", 0, row["steps"], len(run.rounds))
    for number, (call, (plan, outcome)) in enumerate(zip(calls, run.rounds, strict=False), 1):
        start, length = call["w"]
        ids = list(plan.canvas[start - plan.start :])
        yield from check("window", number, call["w"], [plan.start + len(plan.canvas) - len(ids), len(ids)])
        yield from check("ids", number, call["x"], ids)
        end = start + length - run.prompt_len
        answer = outcome.canvas[max(0, start - run.prompt_len) : end]
        yield from check("ids after", number, call["y"][-len(answer) :], list(answer))
        first = max(start, run.prompt_len)
        moves, writes = _moves_and_writes(call, range(first, start + length), run.mask_token_id)
        moved = [list(move) for step in outcome.rule_steps for move in step.shift.moves]
        yield from check("moves", number, moves, moved)
        yield from check("writes", number, writes, dict(outcome.fills))
        yield from check(
            "done", number, bool(call["done"] or call.get("final")), _is_last(run, number, start)
        )
    yield from check("canvas", 0, row["canvas"], run.tokens)
    tokens = token_ids(row, "tokens")
    yield from check("tokens", 0, tokens, run.tokens[: len(tokens)])


def _moves_and_writes(
    call: dict[str, Any], positions: range, mask: int
) -> tuple[list[list[int | None]], dict[int, int]]:
    """Where what a call has moved was before (None: it is a new mask), and what it has written, by position."""
    kinds, ids = dict(call.get("op", ())), call["x"][-len(positions) :]
    written = {write[0]: write[-1] for write in [*call.get("f", ()), *call.get("ed", ())]}
    content: list[int | None] = []
    for at in positions:
        content += {"D": [], "S": [None, at]}.get(kinds.get(at, ""), [at])
    content += [None] * len(positions)
    moves, writes = [], {}
    for at, source, token in zip(positions, content, ids, strict=False):
        new = None if source is None or source in kinds else written.get(source)
        kept = None if new == mask else source
        if new is not None and new != mask:
            writes[at] = new
        if kept != at and not (kept is None and token == mask):
            moves.append([kept, at])
    return moves, writes


def _is_last(run: ReplayedRun, number: int, start: int) -> bool:
    """Whether a call, counted from 1, is the last one on the block from `start` on."""
    if number == len(run.rounds):
        return True
    plan = run.rounds[number][0]
    return plan.branches[0].scored.start > max(start, run.prompt_len)
