"""The environment variables with which Ray Serve notices what is lost or hung, and says it as this server does."""

from __future__ import annotations

import os

from cluster.serving.http.serve_proxy import CALLBACK, CALLBACK_VARIABLE

SERVE_ENVIRONMENT = {
    # A replica that does not answer would hold its place for `graceful_shutdown_timeout_s`, and no other could start.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # Three failures in a row replace the proxy: an ended proxy is found in 3 s in place of 30.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "4",
    # On a busy machine a proxy takes longer to start than Serve's 5 s, and would be killed and started again.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    CALLBACK_VARIABLE: CALLBACK,
}
"""Serve's controller and proxies read them when they start. docs/serving.md lists them for clusters."""


def serve_environment() -> dict[str, str]:
    """Variables for Serve's processes. Values of this process's own environment win."""
    return {name: os.environ.get(name, value) for name, value in SERVE_ENVIRONMENT.items()}
