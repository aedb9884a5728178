"""Settings of earlier versions, for the message of one that is unknown."""

from __future__ import annotations

_GATEWAY = "a gateway in front limits clients, see cluster/deploy/nginx.conf"
_STARTS = "waits of scaling follow from the time that a worker takes to start"

REMOVED = {
    **dict.fromkeys(("requests_per_minute", "tokens_per_minute", "tokens_per_day"), _GATEWAY),
    **dict.fromkeys(("interval_s", "grow_after_s", "shrink_after_s", "cool_down_s"), _STARTS),
    "min_workers": "group.num_workers is the minimum",
    "placement": "workers are on as few nodes as their resources allow; see group.resources",
    "shared_branches": "requests with branch_budget load share their own max_branches",
    "threads_per_worker": "a worker has a thread for each CPU of group.num_cpus",
    "compile_timeout_s": "it follows group.step_timeout_s, a fifteenth of it",
    "compile": "model.cuda_graphs replays captured steps on cuda",
    "prefix_cache_positions": "set prefix_cache; it has as many positions as all slots",
    **dict.fromkeys(
        ("predicate_temperature", "choice_temperature", "score_temperature"),
        "a checkpoint has its temperatures in its decisions.json",
    ),
    "commit_protocol": "commits follow window_attention",
    "block_origin": "window_attention tiled counts blocks from position 0",
    "resume_timeout_s": "requests wait for another group for start_timeout_s",
    "sampler": "a model is decoded by the sampler that it was published with",
    "anchor": "the anchor competes, and wins by its branch confidence alone",
    "lookahead_below": "num_branches auto takes the branches that have paid off",
    "retry_after_s": "clients are told to wait for a second",
    "max_choices": "a request has at most 16 choices",
    "max_stop": "a request has at most 64 stop texts",
}
"""Name → what there is instead."""
