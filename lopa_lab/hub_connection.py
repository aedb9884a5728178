"""`use_cache_without_hub`: where the Hub cannot be reached, its packages are to use their cache at once."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request

import typer

HUB = "https://huggingface.co"
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
TIMEOUT_S = 1.0


def use_cache_without_hub() -> bool:
    """Whether the Hub can be reached. If it cannot, HF_HUB_OFFLINE is set, and a line on stderr says so:
    huggingface_hub and datasets would try again for half a minute before they look into their cache.

    They read the variable when they are imported, so it has to be called before.
    """
    if os.environ.get(OFFLINE_VARIABLE):
        return False
    reason = _unreachable_reason(os.environ.get("HF_ENDPOINT", HUB))
    if reason is None:
        return True
    os.environ[OFFLINE_VARIABLE] = "1"
    typer.echo(
        f"The Hugging Face Hub cannot be reached ({reason}); only what its cache has can be used.", err=True
    )
    return False


def _unreachable_reason(url: str) -> str | None:
    """The error of a request to the address; None if there is a response, of any status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT_S):
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:  # URLError is one
        reason = getattr(error, "reason", error)
        # The Hub's own client may trust other certificates.
        return str(reason) if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) else None
