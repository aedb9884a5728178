"""Settings of earlier versions, for the message of one that is unknown."""

from __future__ import annotations

_GATEWAY = "a gateway in front limits clients, see cluster/deploy/nginx.conf"
_STARTS = "waits of scaling follow from the time that a worker takes to start"

REMOVED = {
    **dict.fromkeys(("requests_per_minute", "tokens_per_minute", "tokens_per_day"), _GATEWAY),
    **dict.fromkeys(("interval_s", "grow_after_s", "shrink_after_s", "cool_down_s"), _STARTS),
    "min_workers": "group.num_workers is the minimum",
    "retry_after_s": "clients are told to wait for a second",
    "max_choices": "a request has at most 16 choices",
    "max_stop": "a request has at most 64 stop texts",
}
"""Name → what there is instead."""
