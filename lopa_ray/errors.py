"""The one error tree. Every message says what was got, what is allowed and what to do."""

from __future__ import annotations


class LopaError(Exception):
    """Base of every error that this project raises on purpose.

    All subclasses are built from one message, so they cross process borders by pickling.
    """


class SettingsError(LopaError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class CheckpointError(LopaError, ValueError):
    """A checkpoint (or adapter) on disk cannot be loaded as it is."""


class PromptError(LopaError, ValueError):
    """A prompt cannot be decoded: empty, too long, ids out of range, no tokenizer."""


class PromptTooLongError(PromptError):
    """A prompt and its answer need more positions than a cache slot has."""


class CapacityError(LopaError):
    """There is no room: more requests in flight than cache slots, or a sequence beyond a slot."""


class ProtocolError(LopaError):
    """A plan or report does not belong to the step or epoch it was handed to."""


class ScoreError(LopaError):
    """The model gave scores that are no numbers."""


class StepLimitError(LopaError):
    """A request used more steps than any correct run can."""


class ClusterError(LopaError):
    """Ray cannot be reached, or is gone."""


class WorkerError(LopaError):
    """A worker failed in a way that is none of our errors, which it names; the group goes on."""


class TransferError(LopaError):
    """K/V could not be exchanged between workers."""


class WorkerLostError(LopaError):
    """A branch worker died or did not answer within its deadline."""


class RequestCancelledError(LopaError):
    """The request was cancelled before it finished."""


class DeadlineError(LopaError):
    """The request was not finished when its deadline came."""


class OverloadedError(LopaError):
    """More requests wait than the queue holds; try again later."""
