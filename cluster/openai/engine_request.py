"""From a checked HTTP request to the request that a decode group gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.choices.messages import EngineRequest
from cluster.openai.errors import invalid_value
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.lopa_options import LopaOptions

MAX_CHOICES, MAX_STOP = 16, 4
"""Choices of a request, and its stop texts, unless something else is set."""


def make_engine_request(
    request_id: str,
    request: GenerationRequest,
    *,
    max_choices: int = MAX_CHOICES,
    max_stop: int = MAX_STOP,
) -> EngineRequest:
    """Raises ApiError (400) for fields that contradict each other, or are beyond the limits of choices and stops."""
    options = request.lopa or LopaOptions()
    prompts, engine_options = request.prompts(), request.engine_options()
    n, stop = engine_options.get("n", 1), engine_options.get("stop", ())
    if n * len(prompts) > max_choices:
        got = f"n {n}" if len(prompts) == 1 else f"{len(prompts)} prompts with n {n}"
        raise invalid_value("n", f"got {got}; allowed: {max_choices} choices per request; split the request")
    if len(stop) > max_stop:
        raise invalid_value("stop", f"got {len(stop)} texts; allowed: {max_stop}; leave some out")
    if options.stream_canvas and not request.stream:
        raise invalid_value("lopa.stream_canvas", "needs stream: true; add that, or leave it out")
    if options.partial and options.deadline is None:
        raise invalid_value("lopa.partial", "got true without a deadline; add lopa.deadline")
    top_logprobs = request.num_top_logprobs()
    return EngineRequest(
        id=request_id,
        prompts=prompts,
        settings=options.decode_settings
        | _decode_settings(request, top_logprobs)
        | request.constraint_settings(),
        raw=request.raw,
        logprobs=top_logprobs is not None,
        stream=bool(request.stream),
        stream_canvas=bool(options.stream_canvas),
        trace=bool(options.trace),
        deadline_s=options.deadline,
        partial=bool(options.partial),
        **engine_options,
    )


def _by_token_id(logit_bias: Mapping[str, float]) -> dict[int, float]:
    return {int(token): bias for token, bias in logit_bias.items()}


def _decode_settings(request: GenerationRequest, top_logprobs: int | None) -> dict[str, Any]:
    """Decode settings that have fields of their own, outside of `lopa`."""
    given = {
        "max_new_tokens": request.max_new_tokens(),
        "temperature": request.temperature,
        "top_p": request.top_p,
        "repetition_penalty": request.repetition_penalty,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "logit_bias": None if request.logit_bias is None else _by_token_id(request.logit_bias),
        # Seeds are not negative; OpenAI's are any 64-bit number.
        "seed": None if request.seed is None else request.seed % 2**63,
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "stop_token_ids": request.stop_token_ids or None,
        "bad_words": request.bad_words or None,
        "top_logprobs": top_logprobs,
    }
    top_k = {} if request.top_k is None else {"top_k": request.top_k if request.top_k > 0 else None}
    return {name: value for name, value in given.items() if value is not None} | top_k
