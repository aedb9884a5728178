"""Recorded against replayed: every difference, in the order of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan

LOGIT_TOLERANCE = 5e-4


def compare_block_decode(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    row, trace = case.row, case.row["trace"]
    for number, ((plan, outcome), recorded) in enumerate(zip(run.rounds, trace, strict=False), 1):
        yield from _compare_round(number, plan, outcome, recorded, run)
    if len(run.rounds) != row["steps"] - 1 or len(run.rounds) != len(trace):
        # Published counts include the last round, which decides nothing.
        yield Difference("steps", 0, row["steps"], len(run.rounds) + 1)
    yield from check("tokens", 0, token_ids(row, "tokens"), run.tokens)


def _compare_round(
    number: int, plan: Plan, outcome: StepOutcome, recorded: dict[str, Any], run: ReplayedRun
) -> Iterator[Difference]:
    """One round, cause before effect: cache, branches, confidences, winner, fills."""
    yield from check(
        "cache round",
        number,
        {"c": recorded["c"], "u": recorded["u"], "i": recorded["i"]},
        {"c": sum(map(len, plan.cached)), "u": sum(map(len, plan.branches[0].to_stage)), "i": plan.start},
    )
    if "il" in recorded:
        yield from check("input length", number, recorded["il"], len(plan.canvas))
    if "br" in recorded:
        yield from _compare_branches(number, plan, outcome, recorded, run)
    yield from check("fills", number, recorded["f"], [list(fill) for fill in outcome.fills])
    yield from check("canvas", number, recorded["q"], list(outcome.canvas))


def _compare_branches(
    number: int, plan: Plan, outcome: StepOutcome, recorded: dict[str, Any], run: ReplayedRun
) -> Iterator[Difference]:
    # The published decoder evaluates a base without forks twice; here once.
    recorded_branches = recorded["br"]
    unique = [
        index for index, branch in enumerate(recorded_branches) if branch not in recorded_branches[:index]
    ]
    expected = [recorded_branches[index] for index in unique]
    got = [list(branch.fills[0]) if branch.fills else None for branch in plan.branches]
    if expected != got:
        yield Difference("branches", number, expected, got)
        return
    lengths, masks, confidences = ([recorded[key][index] for index in unique] for key in ("ln", "nm", "cf"))
    yield from check("branch lengths", number, lengths, [branch.stop for branch in plan.branches])
    counts = [plan.input_ids(branch).count(run.mask_token_id) for branch in plan.branches]
    yield from check("branch masks", number, masks, counts)
    yield from check_close("confidences", number, confidences, list(outcome.confidences))
    yield from check("winner", number, expected.index(recorded_branches[recorded["w"]]), outcome.winner)


def compare_windows(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what each call was fed, what of it entered the cache (where recorded), and the call that filled each
    position. Calls without an effect are recorded, and not made here."""
    row = case.row
    windows, fill_step, idle = row["windows"], row["fill_step"], _idle_calls(case)
    expected_windows = [window for call, window in enumerate(windows, 1) if call not in idle]
    plans = [plan for plan, _ in run.rounds]
    got_windows = [[plan.start, len(plan.canvas), _num_staged(case, plan)] for plan in plans]
    for number, (expected, got) in enumerate(zip(expected_windows, got_windows, strict=False), 1):
        if expected != got[: len(expected)]:
            yield Difference("windows", number, expected, got)
            break
    decisions = {d.position - run.prompt_len: (o.step, d) for _, o in run.rounds for d in o.filled}
    calls = [call for call in range(1, len(windows) + 1) if call not in idle]
    expected_fill = [calls.index(call) + 1 if call else 0 for call in fill_step]
    got_fill = [decisions[at][0] if at in decisions else 0 for at in range(len(fill_step))]
    yield from check("fill_step", 0, expected_fill, got_fill)
    if not len(plans) + len(idle) == row["nfe"] == len(windows):
        yield Difference("nfe", 0, row["nfe"], len(plans) + len(idle))
    yield from check("tokens", 0, _filled_tokens(row, run), run.tokens)
    if "fill_conf" in row:
        expected_conf = [conf for conf, call in zip(row["fill_conf"], fill_step, strict=True) if call]
        got_conf = [decisions[at][1].probability for at in sorted(decisions)]
        yield from check_close("fill_conf", 0, expected_conf, got_conf)


def compare_calls(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what each call filled, and the answer. An early stop ends the published code's run after the first block
    with an EOS; here the run goes on, and what it fills then is not recorded."""
    row = case.row
    calls, fill_step, tokens = row["calls"], row["fill_step"], token_ids(row, "tokens")
    rounds = run.rounds[: len(calls)]
    made = len(rounds) if row["settings"].get("early_stop") else len(run.rounds)
    if not made == len(calls) == row["nfe"]:
        yield Difference("nfe", 0, row["nfe"], made)
    for number, (call, (_, outcome)) in enumerate(zip(calls, rounds, strict=False), 1):
        got = sorted([position - run.prompt_len, token] for position, token in outcome.fills)
        yield from check("fills", number, sorted(call["fills"]), got)
    filled = [at for at, call in enumerate(fill_step) if call]
    yield from check("tokens", 0, [tokens[at] for at in filled], [run.tokens[at] for at in filled])
    decisions = {d.position - run.prompt_len: d for _, outcome in rounds for d in outcome.filled}
    got_conf = [decisions[at].probability for at in sorted(decisions)]
    yield from check_close("fill_conf", 0, [row["fill_conf"][at] for at in filled], got_conf)


def compare_uncached_blocks(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what LLaDA2's calls saw (all up to the end of the current block), what they filled, and the answer.

    With an early end the published code goes on until a call fills an EOS; here the answer ends as soon as all before
    the first EOS is filled. Calls after that are recorded, and not made here. An EOS in the prompt ends the published
    code's run with the first EOS that is filled, and a part of the prompt is returned. Here the prompt is not searched:
    the calls after that are not recorded, and the answer is not compared.
    """
    row = case.row
    answer, calls, fill_step = token_ids(row, "tokens"), row["nfe"], row["fill_step"]
    cut_in_prompt = "returned_length" in row
    least = max(fill_step[: len(answer)], default=0) if row["settings"].get("eos_early_stop") else calls
    made = min(len(run.rounds), calls) if cut_in_prompt else len(run.rounds)
    if not (calls if cut_in_prompt else least) <= made <= calls == len(row["windows"]):
        yield Difference("nfe", 0, calls, len(run.rounds))
    rounds = run.rounds[:made]
    expected_ends = [start + length for start, length, *_ in row["windows"][:made]]
    got_ends = [plan.start + len(plan.canvas) for plan, _ in rounds]
    yield from check("windows", 0, expected_ends, got_ends)
    decisions = {d.position - run.prompt_len: (o.step, d) for _, o in rounds for d in o.filled}
    expected_fill = {at: call for at, call in enumerate(fill_step) if 0 < call <= made}
    got_fill = {at: call for at, (call, _) in sorted(decisions.items())}
    if expected_fill != got_fill:
        yield Difference("fill_step", 0, expected_fill, got_fill)
        return
    expected_canvas = [row["canvas"][at] for at in expected_fill]
    yield from check("canvas", 0, expected_canvas, [decisions[at][1].token for at in expected_fill])
    answer = _filled_tokens(row, run)
    if not cut_in_prompt and run.tokens[: len(answer)] != answer:
        yield Difference("tokens", 0, answer, run.tokens)
    expected_conf = [row["fill_conf"][at] for at in expected_fill]
    got_conf = [decisions[at][1].probability for at in expected_fill]
    yield from check_close("fill_conf", 0, expected_conf, got_conf)


def compare_edited_blocks(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """Compare what LLaDA2.1's calls saw (all up to the end of the current block), what each filled and edited, and the
    canvas. The answer is the canvas, cut at the requested length and at the first EOS."""
    row = case.row
    yield from check("nfe", 0, row["nfe"], len(run.rounds))
    expected_ends = [start + length for start, length, *_ in row["windows"]]
    yield from check("windows", 0, expected_ends, [plan.start + len(plan.canvas) for plan, _ in run.rounds])
    fills: dict[int, tuple[int, float]] = {}
    tokens: dict[int, int] = {}
    edits, edit_conf = [], []
    for _, outcome in run.rounds:
        for decision in outcome.filled:
            at = decision.position - run.prompt_len
            if at in tokens:
                edits.append([outcome.step, at, tokens[at], decision.token])
                edit_conf.append(decision.probability)
            else:
                fills[at] = outcome.step, decision.probability
            tokens[at] = decision.token
    filled = [fills.get(at, (0, 0.0)) for at in range(len(row["canvas"]))]
    yield from check("fill_step", 0, row["fill_step"], [call for call, _ in filled])
    yield from check("edits", 0, row["edits"], edits)
    yield from check("canvas", 0, row["canvas"], run.tokens)
    answer = token_ids(row, "tokens")
    yield from check("tokens", 0, answer, run.tokens[: len(answer)])
    yield from check_close("fill_conf", 0, row["fill_conf"], [confidence for _, confidence in filled])
    yield from check_close("edit_conf", 0, row["edit_conf"], edit_conf)


def compare_soft_blocks(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """DMax's calls, what each filled and edited, how probable that was in a block's first two calls, and the answer.

    The second call is the first whose inputs are soft. Probabilities are part of each further call's inputs, so
    rounding grows by a factor of about 10 from call to call. The published code makes a call for the prompt's K/V,
    which decides nothing; here the first call on a block stores them. Behind a block with an early end it sets the rest
    to EOS; here the answer ends with that block. It returns prompt and answer without any EOS.
    """
    row, trace, (prefill, first, *later) = case.row, case.row["trace"], case.row["calls"]
    yield from check("nfe", 0, row["nfe"], len(run.rounds) + 1)
    windows = [[plan.start, len(plan.canvas)] for plan, _ in run.rounds]
    yield from check("calls", 0, [[prefill[0], sum(first)], *later], windows)
    canvas: dict[int, int] = {}
    calls_on: dict[int, int] = {}
    for number, (recorded, (_, outcome)) in enumerate(zip(trace, run.rounds, strict=False), 1):
        fills = [[p, token] for p, token in outcome.fills if p not in canvas]
        edits = [[p, canvas[p], token] for p, token in outcome.fills if p in canvas]
        yield from check("fills", number, recorded["fills"], fills)
        yield from check("edits", number, recorded["edits"], edits)
        canvas |= dict(outcome.fills)
        start = recorded["block"][0]
        calls_on[start] = calls_on.get(start, 0) + 1
        if calls_on[start] <= 2:
            expected = [recorded["p"][decision.position - start] for decision in outcome.filled]
            yield from check_close("p", number, expected, [d.probability for d in outcome.filled])
    answer, got = token_ids(row, "tokens"), run.tokens
    padding = answer[len(got) :]
    whole = not padding or (row["settings"]["early_stop"] and set(padding) == {run.eos_token_id})
    if answer[: len(got)] != got or not whole:
        yield Difference("tokens", 0, answer, got)
    returned = [token for token in token_ids(row, "prompt") + got if token != run.eos_token_id]
    yield from check("returned", 0, token_ids(row, "returned"), returned)


def _filled_tokens(row: dict[str, Any], run: ReplayedRun) -> list[int]:
    """The recorded answer without the masks that no call has filled: these are not part of the canvas here."""
    fill_step = row["fill_step"]
    return [
        token
        for at, token in enumerate(token_ids(row, "tokens"))
        if token != run.mask_token_id or (at < len(fill_step) and fill_step[at])
    ]


def _num_staged(case: Case, plan: Plan) -> int:
    """Positions that entered the cache; for SDAR whether any did."""
    staged = sum(map(len, plan.branches[0].to_stage))
    return min(1, staged) if case.kind.startswith("sdar") else staged


def _idle_calls(case: Case) -> set[int]:
    """Recorded calls (1-based) on tokens that are all decided, whose K/V nothing reads.

    Fast-dLLM's for LLaDA makes one more call where a block's first call has filled it all, and SDAR stores the
    last block.
    """
    calls, fillers = range(1, len(case.row["windows"]) + 1), set(case.row["fill_step"])
    if case.kind.startswith("generate_with"):
        return set(calls) - fillers
    if case.kind.startswith("sdar"):
        return {len(calls)} - fillers
    return set()
