"""Failures of the Hugging Face Hub and of its cache, as errors with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lopa_ray.errors import CheckpointError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


@contextmanager
def named_failures(repository: str, revision: str | None) -> Iterator[None]:
    """Raises CheckpointError, which names repository and revision, for every failure inside."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # HTTP clients, Xet and file systems have no base class in common
        raise CheckpointError(f"{describe(repository, revision)}: {_explain(repository, error)}") from error


def describe(repository: str, revision: str | None) -> str:
    return f"{repository} at revision {revision or 'main'}"


def _explain(repository: str, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if cache.startswith("~"):  # huggingface_hub has asked for the home folder when it was imported
        return f"the cache {cache} has no folder, because no home is known; set HF_HOME to one that can be written"
    if isinstance(error, errors.IncompleteSnapshotError):
        return f"the cache {cache} has only a part of its files, and HF_HUB_OFFLINE is set; unset it"
    reason: BaseException | None = error
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.RevisionResolutionError)):
        # These say that the cache has no copy either; what kept the Hub from answering is their cause.
        reason = error.__cause__
    if reason is None or isinstance(reason, errors.OfflineModeIsEnabled):
        return (
            f"it is not in the cache {cache}, and HF_HUB_OFFLINE is set; unset it, or copy the cache of a machine that "
            f"has run `hf download {repository}`, or correct the name, which is no folder here either"
        )
    if isinstance(reason, errors.HfHubHTTPError):
        return _explain_answer(repository, reason, hub)
    # Xet's errors have the system's message in their text, and no number.
    if getattr(reason, "errno", None) == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(reason):
        return f"the disk of the cache {cache} is full; make room, or set HF_HOME to a folder with more room"
    if isinstance(reason, OSError) and reason.errno is not None:
        return f"the cache {cache} cannot be used ({reason}); set HF_HOME to a folder that can be written"
    said = str(reason).strip().partition("\n")[0]
    return (
        f"got no usable answer from {hub} ({type(reason).__name__}: {said}), and the cache {cache} does not have all "
        "of it; check the connection, HF_ENDPOINT and proxies, or try again later"
    )


def _explain_answer(repository: str, answer: HfHubHTTPError, hub: str) -> str:
    from huggingface_hub import errors

    status = answer.response.status_code
    said = (answer.server_message or str(answer)).strip().partition("\n")[0]
    if isinstance(answer, errors.GatedRepoError):
        return (
            f"the repository is gated; accept its licence at {hub}/{repository}, and set HF_TOKEN to a token of the "
            "account that did"
        )
    if isinstance(answer, errors.RevisionNotFoundError):
        return (
            "the repository has no such revision; need a branch, a tag or a whole commit: choose one at "
            f"{hub}/{repository}/commits"
        )
    if status == 401 and "invalid credentials" in str(answer).lower():
        return f"{hub} does not know the token that is set; set HF_TOKEN to a valid one, or unset it"
    if status == 401 or isinstance(answer, errors.RepositoryNotFoundError):
        return (
            f"{hub} has no such repository, or it is private; correct the name, which is no folder here either, or "
            "set HF_TOKEN to a token that may read it"
        )
    if status == 403:
        return f"access is denied ({said}); set HF_TOKEN to a token that may read the repository, or use another one"
    if status == 429:
        return f"got too many requests for {hub}; wait, or set HF_TOKEN, with which more are allowed"
    return (
        f"got status {status} from {hub} ({said}), and the cache does not have all of it; try again later, or "
        "check HF_ENDPOINT"
    )
