"""Decisions on a group whose workers are killed in the middle of steps: the bits of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from actors import RayEngine
from lopa_ray import (
    ChoiceQuestion,
    Config,
    DecisionResult,
    DecisionTask,
    LocalEngine,
    PredicateQuestion,
    ScoreQuestion,
)
from lopa_ray.decisions.questions import Question
from support.fault_injection import FaultInjection
from support.processes import actor_pids
from support.waiting import wait_until

NUM_WORKERS = 3
INPUT = "Tom has 6 pens, and Mia has 9 pens."
QUESTIONS: list[Question] = [
    *(PredicateQuestion(f"Does Mia have more than {number} pens?") for number in range(30)),
    *(ChoiceQuestion(f"Who has {number} pens?", ["Tom", "Mia", True, "true"]) for number in range(15)),
    *(
        ScoreQuestion(f"How many are {number} pens?", [f"level {at}" for at in range(12)])
        for number in range(15)
    ),
]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> FaultInjection:
    return FaultInjection(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def engine(faults: FaultInjection) -> Iterator[RayEngine]:
    config = Config.parse(
        {
            "model": {"max_model_len": 256, "max_num_seqs": 4},
            "group": {"num_workers": NUM_WORKERS, "num_cpus": 0.5},
        }
    )
    with RayEngine.from_config(config, runner_factory=faults) as started:
        yield started


@pytest.fixture(scope="module")
def reference() -> DecisionResult:
    torch.set_num_threads(1)
    return LocalEngine.from_pretrained("demo", max_model_len=256).decide(INPUT, QUESTIONS)


@pytest.mark.slow
def test_questions_have_the_bits_of_one_process(engine: RayEngine, reference: DecisionResult) -> None:
    result = engine.decide(INPUT, QUESTIONS)
    assert result.answers == reference.answers and result.log_likelihoods == reference.log_likelihoods
    few = engine.decide(INPUT, QUESTIONS[43:47])
    assert few.answers == reference.answers[43:47]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "workers"),
    [
        ("forward", 1),
        pytest.param("step", NUM_WORKERS - 1, marks=pytest.mark.long),
        pytest.param("answer", NUM_WORKERS, marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_loses_no_decision(
    engine: RayEngine, faults: FaultInjection, reference: DecisionResult, point: str, workers: int
) -> None:
    wait_until(lambda: engine.status().workers == NUM_WORKERS, 120, "all workers")
    wait_until(lambda: len(actor_pids("BranchWorker")) == NUM_WORKERS, 60, "others to end")
    faults.inject(point, workers)
    tasks = [
        DecisionTask(INPUT, QUESTIONS),
        DecisionTask(INPUT, QUESTIONS[::-1]),
        DecisionTask(INPUT, QUESTIONS[:3]),
    ]
    results = dict(engine.decide_all(tasks))
    wait_until(lambda: not faults.pending, 10, "the fault")
    for index, wanted in ((0, reference.answers), (1, reference.answers[::-1]), (2, reference.answers[:3])):
        result = results[index]
        assert isinstance(result, DecisionResult), result
        assert result.answers == wanted
