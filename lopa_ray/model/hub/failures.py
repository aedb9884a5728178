"""Failures of the Hugging Face Hub and of its cache, as errors with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lopa_ray.errors import CheckpointError


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
    from huggingface_hub import constants, errors, is_offline_mode

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    # Errors about a missing copy in the cache have the reason why the Hub was of no help as their cause.
    lacks_copy = isinstance(error, errors.LocalEntryNotFoundError | errors.RevisionResolutionError)
    reason = error.__cause__ if lacks_copy and error.__cause__ else error
    said = str(reason)
    if is_offline_mode():
        remedy = (
            f"the cache {cache} does not have all of it, and HF_HUB_OFFLINE is set; unset it, or copy the cache of a "
            f"machine that has run `hf download {repository}`, or correct the name, which is no folder here either"
        )
    elif isinstance(reason, errors.HfHubHTTPError):
        said = f"status {reason.response.status_code}, {reason.server_message or said}"
        remedy = (
            f"look at {hub}/{repository}; correct name and revision (no folder here has that name either), set "
            "HF_TOKEN to a token that may read the repository, check HF_ENDPOINT, or try again later"
        )
    elif isinstance(reason, OSError) or "No space left" in said or cache.startswith("~"):
        # Xet's errors about a full disk are RuntimeErrors; `~` stays in the path where no home is known.
        remedy = f"make room in the cache {cache}, or set HF_HOME to a folder that can be written"
    else:
        remedy = f"check the connection to {hub}, HF_ENDPOINT and proxies, or try again later"
    first_line = said.strip().partition("\n")[0]
    return f"got {type(reason).__name__} ({first_line}); {remedy}"
