"""WINO's recorded decodes: how their settings are read, and the comparison of calls."""

from __future__ import annotations

from collections.abc import Iterator

from lopa_lab.conformance.cases import Case, Difference, token_ids
from lopa_lab.conformance.readers import RecordedSettings
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.wino import WinoSettings


def wino_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of WINO on LLaDA. Raises as `recorded_settings`."""
    pop = recorded.pop
    return WinoSettings, {
        "max_new_tokens": pop("gen_length", int),
        "block_size": pop("block_length", int),
        "confidence_threshold": recorded.pop_threshold("threshold"),
        "threshold_back": recorded.pop_threshold("threshold_back"),
        "stop_at_eos": False,
    }


def compare_wino(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """What each call filled and masked again, how probable that was, and the answer."""
    row = case.row
    yield from check("steps", 0, row["steps"], len(run.rounds))
    for number, (recorded, (_, outcome)) in enumerate(zip(row["trace"], run.rounds, strict=False), 1):
        filled = [decision for decision in outcome.filled if decision.token != run.mask_token_id]
        filled.sort(key=lambda decision: decision.position)
        doubts = {
            decision.position - run.prompt_len: 1 - decision.probability
            for decision in outcome.filled
            if decision.token == run.mask_token_id
        }
        fills = [[decision.position - run.prompt_len, decision.token] for decision in filled]
        yield from check("fills", number, [fill[:2] for fill in recorded["f"]], fills)
        yield from check_close("p", number, [f[2] for f in recorded["f"]], [d.probability for d in filled])
        yield from check("masked again", number, sorted(recorded["r"]), sorted(doubts))
        verified = dict(map(tuple, recorded["back"]))
        yield from check_close("q", number, [verified[p] for p in doubts], list(doubts.values()))
    yield from check("tokens", 0, token_ids(row, "tokens"), run.tokens)
