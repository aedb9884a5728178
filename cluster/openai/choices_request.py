"""From a checked HTTP request to the request that a decode group gets."""

from __future__ import annotations

from typing import Any

from cluster.choices.messages import ChoicesRequest
from cluster.openai.errors import invalid_value
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.lopa_options import LopaOptions
from lopa_ray.config.generation_settings import GIVING, GenerationSettings

MAX_CHOICES, MAX_STOP = 16, 64
"""Choices of a request, and its stop texts."""


def make_choices_request(request_id: str, request: GenerationRequest, *, client: str = "") -> ChoicesRequest:
    """Raises ApiError (400) for fields that contradict each other, or are beyond the limits of choices and stops."""
    options = request.lopa or LopaOptions()
    prompts, choices_options = request.prompts(), request.choices_options()
    n, stop = choices_options.get("n", 1), choices_options.get("stop", ())
    if n * len(prompts) > MAX_CHOICES:
        got = f"n {n}" if len(prompts) == 1 else f"{len(prompts)} prompts with n {n}"
        raise invalid_value("n", f"got {got}; allowed: {MAX_CHOICES} choices per request; split the request")
    if len(stop) > MAX_STOP:
        raise invalid_value("stop", f"got {len(stop)} texts; allowed: {MAX_STOP}; leave some out")
    if options.stream_canvas and not request.stream:
        raise invalid_value("lopa.stream_canvas", "needs stream: true; add that, or leave it out")
    if options.partial and options.deadline is None:
        raise invalid_value("lopa.partial", "got true without a deadline; add lopa.deadline")
    top_logprobs = request.num_top_logprobs()
    return ChoicesRequest(
        id=request_id,
        prompts=prompts,
        settings=options.decode_settings
        | _decode_settings(request, top_logprobs)
        | request.constraint_settings()
        | request.giving_settings(),
        client=client,
        priority=request.priority or 0,
        raw=request.raw,
        logprobs=top_logprobs is not None,
        stream=bool(request.stream),
        stream_canvas=bool(options.stream_canvas),
        trace=bool(options.trace),
        deadline_s=options.deadline,
        partial=bool(options.partial),
        **choices_options,
    )


SETTING_FIELDS = [
    name
    for name in GenerationSettings.model_fields
    if name in GenerationRequest.model_fields and name not in GIVING
]
"""Fields that set the decode setting of the same name."""


def _decode_settings(request: GenerationRequest, top_logprobs: int | None) -> dict[str, Any]:
    """Decode settings that have fields of their own, outside of `lopa`. An empty list sets nothing."""
    given = {name: getattr(request, name) for name in SETTING_FIELDS}
    given |= {"max_new_tokens": request.max_new_tokens(), "top_logprobs": top_logprobs}
    settings = {name: value for name, value in given.items() if value is not None and value != []}
    if request.seed is not None:
        settings["seed"] = request.seed % 2**63  # seeds are not negative; OpenAI's are any 64-bit number
    if request.top_k is not None and request.top_k < 1:
        settings["top_k"] = None  # all tokens, also where the model's default is fewer
    return settings
