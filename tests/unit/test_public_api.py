"""The public API: what it lists, that all of it is there, and what importing it costs."""

from __future__ import annotations

import pytest

import actors
import cluster.jobs
import lopa_ray
from lopa_ray import errors
from lopa_ray.decoding.decoders import DECODERS

LOPA_RAY = {
    *(decoder.settings.__name__ for decoder in DECODERS.values()),
    *(
        "Config",
        "GenerationSettings",
        "GivenPart",
        "GroupSettings",
        "LookaheadSettings",
        "ModelSettings",
        "ScalingSettings",
    ),
    *(
        "AsyncEngine",
        "DecodeSession",
        "Engine",
        "GenerationChunk",
        "GenerationResult",
        "LocalEngine",
        "Tokenizer",
    ),
    *("TraceBranch", "TraceRuleStep", "TraceStep"),
    *("DecisionResult", "DecisionSettings", "DecisionTask", "Option"),
    *(
        "ChoiceAnswer",
        "ChoiceQuestion",
        "PredicateAnswer",
        "PredicateQuestion",
        "ScoreAnswer",
        "ScoreQuestion",
    ),
    *(
        "BlockView",
        "Decision",
        "Plan",
        "Prompt",
        "RequestEvent",
        "RequestFailure",
        "RequestSettings",
        "RequestStep",
        "StepOutcome",
    ),
    *(
        "ActorStartError",
        "CapacityError",
        "CheckpointError",
        "ClusterError",
        "DeadlineError",
        "LopaError",
        "OverloadedError",
    ),
    *(
        "PromptError",
        "PromptTooLongError",
        "ProtocolError",
        "RepeatedLossError",
        "RequestCancelledError",
        "RequestError",
        "ScoreError",
    ),
    *("SettingsError", "StepLimitError", "TransferError"),
    *("WorkerError", "WorkerLostError", "WorkerMemoryError"),
}
ACTORS = {"AsyncRayEngine", "MasterStatus", "RayEngine"}


def test_the_lists_are_these_and_every_name_is_there() -> None:
    assert set(lopa_ray.__all__) == LOPA_RAY and set(actors.__all__) == ACTORS
    assert set(cluster.jobs.__all__) == {"LopaDecider", "LopaPredictor"}
    for package in (lopa_ray, actors, cluster.jobs):
        for name in package.__all__:
            assert getattr(package, name) is not None and name in dir(package)


def test_every_error_is_public() -> None:
    named = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert named <= LOPA_RAY


def test_what_is_not_there_is_an_import_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        lopa_ray.Nothing  # noqa: B018 - looking it up is what is tested
