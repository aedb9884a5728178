"""The measured costs of forwards: before which steps, in which file, and what they change."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution import cost_trial
from lopa_ray.execution.cost_trial import LANES, with_padding
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.padding import few_rows, padded_rows
from lopa_ray.protocol.forward_costs import ForwardCosts
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

pytestmark = pytest.mark.medium

AUTO = SETTINGS["verified"].replace(num_branches="auto", max_new_tokens=24)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ForwardCosts]:
    """What is measured from now on, with an empty folder of files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[ForwardCosts] = []

    def measure(runner: BranchRunner) -> ForwardCosts:
        seen.append(measure_costs(runner))
        return seen[-1]

    measure_costs = cost_trial.measure_costs
    monkeypatch.setattr(cost_trial, "measure_costs", measure)
    return seen


def decode(settings: LookaheadSettings, **sections: dict[str, object]) -> list[list[int]]:
    torch.set_num_threads(1)
    with LocalEngine.from_config(tiny_config(**sections)) as engine:
        return [result.token_ids for result in engine.generate(PROMPTS, settings)]


def test_a_file_has_what_was_measured_for_the_same_model_run_alike(measured, tmp_path: Path) -> None:
    decode(AUTO.replace(num_branches=3))
    decode(AUTO.replace(acceptance=0.5))
    assert measured == []
    tokens = decode(AUTO)
    assert decode(AUTO) == tokens == decode(AUTO.of_one_branch())
    assert len(measured) == 1 and measured[0].rows == (4, 5, 8, 9, 16, 17, *list(LANES)[3:])
    decode(AUTO, model={"dtype": "bfloat16"})
    decode(AUTO, model={"dtype": "bfloat16", "max_num_seqs": 2})
    assert len(measured) == 2
    for file in tmp_path.rglob("*.json"):
        file.write_text('{"8": -1}')
    assert decode(AUTO) == tokens and len(measured) == 3
    assert decode(AUTO) == tokens and len(measured) == 3


def test_rows_of_a_padded_step_cost_as_many_as_it_has() -> None:
    ms = {8: 1.0, 16: 2.0, 32: 3.0, 64: 4.0}
    costs = ForwardCosts.of(with_padding(ms, padded_rows))
    assert [costs.at(rows) for rows in (1, 8, 9, 16, 17, 31, 32)] == [1, 1, 2, 2, 3, 3, 3]
    assert 3 < costs.at(33) < costs.at(48) < 4  # 48 rows are a step between the two
    assert with_padding(ms, few_rows) == ms


def test_a_trial_leaves_the_slots_as_they_are() -> None:
    with LocalEngine.from_config(tiny_config()) as engine:
        expected = engine.generate(PROMPTS[0], AUTO.of_one_branch()).token_ids
        session = engine.create_session(PROMPTS[0], AUTO.of_one_branch())
        for event in engine.events([session]):
            canvas = list(event.outcome.canvas)
            cost_trial.measure_costs(engine.runner)
        assert canvas[: len(expected)] == expected


def test_a_table_makes_steps_reproducible_and_changes_no_token(measured) -> None:
    tables = {"free": {8: 1.0}, "dear": {8: 1.0, 64: 1e6}}
    steps, tokens = {}, set()
    for name, table in tables.items():
        for _ in range(2):
            with LocalEngine.from_config(tiny_config(group={"forward_costs": table})) as engine:
                results = engine.generate(PROMPTS, AUTO)
            of_run = [(result.steps, result.forwards) for result in results]
            assert steps.setdefault(name, of_run) == of_run
            tokens.add(str([result.token_ids for result in results]))
    assert len(tokens) == 1 and measured == []
    assert sum(forwards for _, forwards in steps["dear"]) < sum(forwards for _, forwards in steps["free"])


def test_guesses_of_self_speculation_follow_the_costs_too() -> None:
    settings = SelfSpeculationSettings(max_new_tokens=24, block_size=8, num_branches="auto")
    forwards, tokens = [], []
    for last in (1.0, 1e6):
        config = tiny_config(group={"forward_costs": {8: 1.0, 640: last}})
        with LocalEngine.from_config(config) as engine:
            result = engine.generate(PROMPTS[0], settings)
        forwards.append(result.forwards / result.steps)
        tokens.append(result.token_ids)
    assert forwards[0] > forwards[1] == 1 and tokens[0] == tokens[1]
