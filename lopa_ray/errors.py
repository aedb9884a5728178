"""All error classes of the project. Every message says what was got, what is allowed and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import Repr
from typing import Any


class LopaError(Exception):
    """Base of every error that this project raises on purpose.

    The message is the only required argument of every subclass, so it can be pickled and sent between processes.
    """


class RequestError(LopaError, ValueError):
    """A request or a configuration is wrong: the base of errors about settings and prompts."""

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        """`setting`: the name of the wrong setting, if it is a single one."""
        super().__init__(message)
        self.setting = setting


class SettingsError(RequestError):
    """A setting is unknown, out of range or contradicts another setting."""


@contextmanager
def about_setting(name: str | None) -> Iterator[None]:
    """Give SettingsErrors that are raised inside the setting `name`: readers of patterns and schemas do not know it."""
    try:
        yield
    except SettingsError as error:
        error.setting = error.setting or name
        raise


class CheckpointError(LopaError, ValueError):
    """A checkpoint or an adapter on disk cannot be loaded."""


class PromptError(RequestError):
    """A prompt cannot be decoded: it is empty or too long, has ids out of range, or needs a missing tokenizer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, setting="prompt")


class PromptTooLongError(PromptError):
    """A prompt and its answer together need more positions than a cache slot has."""


class CapacityError(LopaError):
    """The KV cache has no room: it does not fit in memory, or a sequence is longer than a slot."""


class ProtocolError(LopaError):
    """A plan, a report or a call does not match the current step, epoch, cache or state."""


class ScoreError(LopaError):
    """The model returned scores that are NaN."""


class StepLimitError(LopaError):
    """A request took more steps than any correct run can take."""


class ClusterError(LopaError):
    """Ray cannot be reached or was shut down, or the engine on it is closed."""


class ActorStartError(ClusterError):
    """Ray cannot start an actor; the message has Ray's reason."""


class WorkerError(LopaError):
    """A request makes workers fail: one raised an exception that is not a `LopaError`. The group continues to run."""


class RepeatedLossError(WorkerError):
    """Workers were lost each time that a request's step was run, at last alone. Whether it is the cause is not known.
    The group continues to run."""


class WorkerMemoryError(WorkerError):
    """A worker has too little memory for a request."""


class TransferError(LopaError):
    """K/V could not be exchanged between workers."""


class WorkerLostError(LopaError):
    """A branch worker died or did not answer within its deadline."""

    def __init__(self, message: str, losses: int = 0) -> None:
        """`losses`: how often workers were lost during steps of the request that ends with the error."""
        super().__init__(message)
        self.losses = losses


class RequestCancelledError(LopaError):
    """The request was cancelled before it finished."""


class DeadlineError(LopaError):
    """The request was not finished at its deadline."""


class OverloadedError(LopaError):
    """The queue of waiting requests is full; try again later."""


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 80


def short_repr(value: Any) -> str:
    """A value that a client sent, short enough for a message."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _REPR.repr(value)
