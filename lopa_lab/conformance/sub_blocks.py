"""Rows of Fast-dLLM v2's decoder (`Fast_dLLM_QwenForCausalLM.generate`), which fills blocks by sub-blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings


def sub_block_settings(recorded: RowSettings) -> tuple[type[GenerationSettings], dict[str, Any]]:
    """A row's settings. Raises MalformedCaseError.

    The published code decodes as many blocks as fit into the requested length, of which the first has a part of the
    prompt.
    """
    pop, prompt = recorded.pop, len(token_ids(recorded.row, "prompt"))
    block, part = pop("block_size", int), pop("small_block_size", int)
    if block < 1 or part < 1:
        raise MalformedCaseError(f"settings: got blocks of {block} and {part}; allowed: 1 and more")
    return BlockDiffusionSettings, {
        "block_size": block,
        "sub_block_size": part,
        "sub_block_cache": pop("use_block_cache", bool),
        "confidence_threshold": recorded.pop_threshold("threshold"),
        "max_new_tokens": pop("max_new_tokens", int) // block * block - prompt % block,
    }


def compare_sub_blocks(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what each call was fed and filled, and the answer.

    The published code stores the last block too, and that call decides one more token; here neither is done. A call
    that stores a block decides the token after it, so here that position is part of the call's canvas.
    """
    row, (_, values) = case.row, sub_block_settings(RowSettings(case.row))
    length = values["max_new_tokens"]
    fill_step, fill_conf = row["fill_step"][:length], row["fill_conf"][:length]
    calls = row["nfe"] - (len(row["fill_step"]) > length)
    yield from check("nfe", 0, calls, len(run.rounds))
    for number, ((start, fed), (plan, _)) in enumerate(zip(row["windows"], run.rounds, strict=False), 1):
        behind = start + fed - run.prompt_len
        decides_behind = 0 <= behind < len(fill_step) and fill_step[behind] == number
        expected = [start, fed + decides_behind]
        yield from check("windows", number, expected, [plan.start, len(plan.canvas)])
    decisions = {d.position - run.prompt_len: (o.step, d) for _, o in run.rounds for d in o.filled}
    got_fill = [decisions[at][0] if at in decisions else 0 for at in range(len(fill_step))]
    yield from check("fill_step", 0, fill_step, got_fill)
    answer = token_ids(row, "tokens")[:length]
    yield from check(
        "tokens", 0, answer, run.tokens[: len(answer)] if run.eos_token_id in answer else run.tokens
    )
    # The published code has no probability of a token after a stored block.
    known = [at for at, confidence in enumerate(fill_conf) if confidence is not None and at in decisions]
    got_conf = [decisions[at][1].probability for at in known]
    yield from check_close("fill_conf", 0, [fill_conf[at] for at in known], got_conf)
