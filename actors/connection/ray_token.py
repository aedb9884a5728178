"""Whether this process shows Ray's token to the cluster that it connects to. Ray reads that once, when it is imported.

A cluster with a token refuses a client without one, and the processes of a cluster without one are refused by a client
that asks for it. A client that is given an address only shows its token if RAY_AUTH_MODE says so (Ray 2.60). So this
module asks the cluster. It never imports Ray.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path

AUTH_MODE = "RAY_AUTH_MODE"  # the variable with Ray's mode of authentication: `token` or `disabled`
TOKEN = "RAY_AUTH_TOKEN"  # the environment variable with a token itself
ANY_CALL = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # without effect: only whether it is refused matters
ANSWER_TIMEOUT_S = 5.0  # for how long a cluster's head is waited for, which may be starting just now


def follow_cluster() -> None:
    """Set RAY_AUTH_MODE=token if the cluster at RAY_ADDRESS requires it, there is a token, and the mode is not set."""
    if AUTH_MODE in os.environ or "ray" in sys.modules or not _has_token():
        return
    if wants_token(os.environ.get("RAY_ADDRESS", "")):
        os.environ[AUTH_MODE] = "token"


def make_token() -> None:
    """Make the token of a Ray that is to start on this machine, if there is none: in a file that only its user may read
    (Ray's own may be read by all), or in RAY_AUTH_TOKEN where the home folder takes no file."""
    if os.environ.get(AUTH_MODE, "token").lower() != "token" or _has_token():
        return
    token = secrets.token_hex(32)
    try:
        path = _token_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o600)
        with open(file, "w", encoding="ascii") as opened:
            os.fchmod(file, 0o600)  # an empty one may have been there
            opened.write(token)
    except OSError:
        os.environ[TOKEN] = token


def is_host_and_port(address: str) -> bool:
    """Whether an address of Ray is `host:port`, and neither a word such as `auto` nor a client's `ray://` address."""
    return re.fullmatch(r"[^/]+:\d+", address) is not None


def wants_token(address: str) -> bool | None:
    """Whether the Ray at `address` refuses calls without a token; None if that is not host:port, or unknown."""
    if not is_host_and_port(address):
        return None
    import grpc  # imported here, because commands without a cluster need not wait for it

    # Ray's own connections use no proxy either.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(ANY_CALL)(b"", timeout=ANSWER_TIMEOUT_S)
        except grpc.RpcError as error:
            return True if error.code() == grpc.StatusCode.UNAUTHENTICATED else None
    return False


def _token_file() -> Path:
    """The file in which Ray looks for a token. Raises FileNotFoundError without HOME, the only source that Ray asks."""
    home = os.environ.get("HOME")
    if not home:
        raise FileNotFoundError("HOME is not set")
    return Path(home, ".ray", "auth_token")


def _has_token() -> bool:
    if os.environ.get(TOKEN) or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    try:
        file = _token_file()
        return file.is_file() and bool(file.read_bytes())
    except OSError:  # a file that cannot be read is not a token for Ray either
        return False
