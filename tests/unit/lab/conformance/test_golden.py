"""Every recorded case of the published decoders that is implemented, through the public engine.

What is compared is `lopa_lab.conformance`'s business; here also that it would notice a difference.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from lopa_lab.conformance.cases import Case, Verdict, read_cases
from lopa_lab.conformance.recorded import recorded_settings
from lopa_lab.conformance.replay import replay
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep
from support.paths import GOLDEN
from support.recorded_cases import MASK_IN_PROMPT, RECORDED, REFUSED

pytestmark = pytest.mark.medium


def cases(name: str) -> list[Case]:
    read = read_cases(GOLDEN / f"{name}.jsonl")
    assert all(isinstance(case, Case) for case in read)
    return [case for case in read if isinstance(case, Case)]


def verdicts(
    wanted: list[Case], make_engine: Callable[[Config], LocalEngine] = LocalEngine.from_config
) -> list[Verdict]:
    torch.set_num_threads(1)
    return list(replay(wanted, GOLDEN / "models", make_engine))


def run_by_transformers(config: Config) -> LocalEngine:
    return LocalEngine.from_config(config.replace(model=config.model.replace(implementation="transformers")))


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cases(name):
    recorded = cases(name)
    found = verdicts(recorded)
    wrong = [(v.id, v.status, v.reason, v.differences[:1]) for v in found if v.status in ("differs", "error")]
    assert wrong == []
    refused = {v.id: v for v in found if v.status == "not supported"}
    assert refused.keys() == REFUSED.keys() & {case.id for case in recorded}
    for verdict in refused.values():
        assert REFUSED[verdict.id] in verdict.reason
        assert verdict.by_design == (MASK_IN_PROMPT in verdict.reason)
    assert Counter(v.status for v in found)["passed"] == len(recorded) - len(refused)


DECODES = [name for name in RECORDED if "forward" not in name]


@pytest.mark.parametrize("name", DECODES)
def test_one_recorded_case_of_each_kind_and_model(name):
    """A part of the test above that takes little."""
    first = {(case.kind, case.model): case for case in reversed(cases(name))}
    found = verdicts([*first.values()])
    assert [v.differences[:1] for v in found if v.status in ("differs", "error")] == []
    assert any(v.status == "passed" for v in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "every"),
    [
        ("lopa_cases", 4),
        ("lora_cases", 1),
        ("llada_generate_cases", 1),
        ("forward_cases", 1),
        ("sdar/sdar_forward_cases", 1),
        ("sdar/sdar_generate_cases", 2),
        ("sdar_moe/sdar_moe_generate_cases", 6),
        ("llada2/llada21_generate_cases", 9),
        ("mbd/mbd_llada21_cases", 9),
        ("dmax/dmax_generate_cases", 9),
        ("nemotron/nemotron_generate_cases", 9),
        ("fast_dllm_v2/fast_dllm_v2_generate_cases", 9),
    ],
)
def test_recorded_cases_run_by_transformers(name, every):
    """Every so many of them, for time's sake; all pass."""
    wanted = cases(name)[::every]
    statuses = Counter(verdict.status for verdict in verdicts(wanted, run_by_transformers))
    assert statuses == Counter(passed=len(wanted))


@pytest.mark.parametrize("name", ["lopa_cases", "lora_cases"])
def test_recorded_block_states(name):
    """What the comparison above leaves out: block states, masks, completeness and the EOS flag per round."""
    torch.set_num_threads(1)
    groups: dict[tuple[str, str | None], list[Case]] = {}
    for case in cases(name):
        groups.setdefault((case.model, case.lora), []).append(case)
    rounds = 0
    for (model, lora), members in groups.items():
        folder = None if lora is None else str(GOLDEN / "lora" / lora)
        with LocalEngine.from_pretrained(GOLDEN / "models" / model, lora=folder, max_model_len=512) as engine:
            # Cases that generate nothing are finished before they begin.
            started = [
                (case, session)
                for case in members
                if not (
                    session := engine.create_session(case.row["prompt"], recorded_settings(case))
                ).finished
            ]
            for event in engine.events([session for _, session in started]):
                assert isinstance(event, RequestStep)
                plan, outcome = event.plan, event.outcome
                row = started[event.request_key][0].row
                recorded = row["trace"][outcome.step - 1]
                states = "".join(_STATES[block.state] for block in outcome.blocks)
                where = (row["id"], outcome.step)
                assert states == recorded["st"], where
                assert [block.masks for block in outcome.blocks] == recorded["bm"], where
                complete = "".join(str(int(block.complete)) for block in outcome.blocks)
                assert complete == recorded["cp"], where
                assert (engine.vocabulary.eos_token_id in outcome.canvas) == bool(recorded["e"]), where
                kept = plan.branches[0].to_stage[-1].stop if plan.branches[0].to_stage else plan.start
                assert kept == recorded.get("pe", kept), where
                ends = [block.stop for block in outcome.blocks]
                cached = [at for at, end in enumerate(ends) if plan.start < end <= kept]
                assert cached == recorded["tc"], where
                rounds += 1
    assert rounds == sum(len(case.row["trace"]) for case in cases(name))


_STATES = {"active": "A", "to_cache": "T", "in_cache": "C"}


# The comparison itself: a recorded value that is changed is noticed.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dream_generate_cases", "fast_dream_dual_cache"),
        ("dream_generate_cases", "vanilla_dream"),
        ("llada_generate_cases", "generate_with_prefix_cache"),
        ("d2f_llada_cases", "d2f_llada"),
        ("sdar/sdar_generate_cases", "sdar_stop"),
        ("sdar_moe/sdar_moe_generate_cases", "sdar_moe_stop"),
        ("llada2/llada2_generate_cases", "llada2_steps"),
        ("llada2/llada2_generate_cases", "llada2_eos_early"),
    ],
)
def test_changed_calls_are_noticed(name, kind):
    case = next(case for case in cases(name) if case.kind == kind)
    changes = {"nfe": case.row["nfe"] + 1, "tokens": case.row["tokens"][::-1]}
    for key, change in (("windows", lambda window: [0, 1]), ("fill_step", lambda call: call + 1)):
        changes[key] = [change(case.row[key][0]), *case.row[key][1:]]
    if "fill_conf" in case.row:
        changes["fill_conf"] = [case.row["fill_conf"][0] + 2e-4, *case.row["fill_conf"][1:]]
    for key, value in changes.items():
        (verdict,) = verdicts([replace(case, row=case.row | {key: value})])
        assert verdict.status == "differs", key


@pytest.mark.parametrize(
    ("name", "case_id", "changes"),
    [
        (
            "mbd/mbd_llada21_cases",
            "mbd_llada21_eos-01",
            [
                (["nfe"], 15),
                (["reason"], "max_nfe_reached"),
                (["tokens", -1], 0),
                (["canvas", -1], 0),
                (["fill_conf", 0], 0.415),
                (["trace", -1], None),
                (["trace", 1, "n"], 33),
                (["trace", 1, "st"], "TA"),
                (["trace", 1, "f", 0, 1], 0),
                (["trace", 1, "ed", 0, 1], 0),
                (["trace", 5, "tc", 0], 9),
            ],
        ),
        (
            "dmax/dmax_generate_cases",
            "dmax_edge-06",
            [
                (["nfe"], 6),
                (["calls", 2, 1], 13),
                (["trace", 0, "fills", 0, 1], 0),
                (["trace", 1, "edits", 0, 2], 0),
                (["trace", 0, "p", 0], 0.5185),
                (["trace", 1, "p", 4], 0.9825),
                (["tokens", 0], 0),
                (["returned", 0], 0),
            ],
        ),
        (
            "klass/klass_llada_cases",
            "klass_llada-22",
            [
                (["forward_calls"], 7),
                (["trace", 3, "f", 0, 1], 0),
                (["trace", 3, "f", 0, 2], 1.5),
                (["tokens", -1], 0),
            ],
        ),
        (
            "credit/credit_llada_cases",
            "credit_full_prefix-01",
            [
                (["trace", -1], None),
                (["trace", 0, "in", 1], 9),
                (["trace", 0, "f", 0, 1], 0),
                (["trace", 0, "f", 0, 2], 1.5),
                (["trace", 0, "f", 0, 3], 1.5),
                (["tokens", -1], 0),
            ],
        ),
        (
            "s2d2/s2d2_sdar_cases",
            "s2d2_sdar_edge-12",
            [
                (["trace", 4], None),
                (["trace", 1, "w", 0], 99),
                (["trace", 1, "span", 1], 1),
                (["trace", 1, "f", 0, 1], 0),
                (["trace", 1, "p", 0], 0.5),
                (["tokens", 0], 0),
            ],
        ),
        (
            "s2d2/s2d2_llada21_cases",
            "s2d2_llada21_span-04",
            [
                (["trace", -1], None),
                (["trace", 1, "w", 1], 99),
                (["trace", 1, "span", 1], 1),
                (["trace", 1, "f", 0, 1], 0),
                (["trace", 4, "p", 0], 2.0),
                (["trace", 5, "ed", 0, 2], 0),
                (["tokens", 0], 0),
                (["canvas", -1], 0),
            ],
        ),
        (
            "s2d2/s2d2_d2f_cases",
            "s2d2_d2f_dream-13",
            [
                (["trace", 1, "w", 0], 99),
                (["trace", 1, "span", 1], 1),
                (["trace", 0, "p", 0], 2.0),
                (["trace", 1, "f", 0, 1], 0),
                (["tokens", 0], 0),
                (["canvas", -1], 0),
            ],
        ),
        (
            "wino/wino_llada_cases",
            "wino_llada-01",
            [
                (["steps"], 1),
                (["trace", 1, "f", 0, 1], 0),
                (["trace", 1, "f", 0, 2], 1.5),
                (["trace", 1, "r"], [99]),
                (["tokens", -1], 0),
            ],
        ),
        (
            "diffusion_gemma/diffusion_gemma_generate_cases",
            "dg-default-04",
            [
                (["windows", 1, 0], 16),
                (["canvases", 0, "steps", 1, "n"], 12),
                (["canvases", 0, "steps", 1, "stop"], 1),
                (["canvases", 0, "steps", 1, "accepted", 0, 1], 0),
                (["canvases", 0, "steps", 1, "argmax", 0], 0),
                (["canvases", 0, "steps", 1, "entropy", 0], 1.0),
                (["tokens", 0], 0),
                (["tokens_per_forward"], 1.0),
            ],
        ),
    ],
)
def test_changed_traces_are_noticed(name, case_id, changes):
    (case,) = [case for case in cases(name) if case.id == case_id]
    for (*parents, last), value in changes:
        row = copy.deepcopy(case.row)
        at = row
        for key in parents:
            at = at[key]
        assert at[last] != value
        if value is None:
            del at[last]
        else:
            at[last] = value
        (verdict,) = verdicts([replace(case, row=row)])
        assert verdict.status == "differs", (*parents, last)
