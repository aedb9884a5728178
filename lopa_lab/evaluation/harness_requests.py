"""Requests of lm-evaluation-harness, as this project's settings and token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import override_settings
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import PromptTooLongError
from lopa_ray.text.tokenizer import require_tokenizer

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the answer's length in the harness; the first given name counts."""


def parse_generation(
    generation: Mapping[str, Any], default: GenerationSettings, repeat: int
) -> tuple[GenerationSettings, tuple[str, ...]]:
    """The settings of an answer, and the strings before the first of which it ends.

    From a task's generation settings; what they leave out is as in `default`. Without `do_sample` decoding is greedy
    unless a temperature is given, as in the harness. `repeat` counts the times that the same request came before: each
    has a seed of its own. Keys that the harness does not define are decode settings (`num_branches`). Raises
    SettingsError.
    """
    values = dict(generation)
    until = values.pop("until", None) or ()
    lengths = [values.pop(name, None) for name in LENGTHS]
    length = next((length for length in lengths if length is not None), None)
    do_sample, temperature = values.pop("do_sample", None), values.pop("temperature", None)
    if do_sample is False:
        temperature = 0.0
    elif temperature is None and do_sample:
        temperature = 1.0
    if temperature is not None:
        values["temperature"] = float(temperature)
    if length is not None:
        values["max_new_tokens"] = int(length)
    settings = override_settings(default, values)
    if repeat and settings.temperature:
        settings = settings.replace(seed=settings.seed + repeat)
    return settings, (until,) if isinstance(until, str) else tuple(until)


CheckGreedy = bool | Literal["auto"]
"""Requests that are decoded greedily, too: all, none, or each that is its document's only request."""

TokenPair = tuple[list[int], list[int]]
"""Prefix and target."""


def encode_pair(
    factory: SessionFactory, context: str, continuation: str, *, parse_special: bool = True
) -> TokenPair:
    """The ids of a context and of what continues it, as the harness splits them: spaces at the end of a context belong
    to what follows, and both are encoded together. An empty context is BOS, or EOS without one.

    What a chat template writes belongs to the context; only the beginning of the answer after it is text. See
    `encode_prompt` for `parse_special`.
    """
    tokenizer = require_tokenizer(factory.tokenizer)
    if isinstance(context, ChatPrompt):
        begun, text = _move_spaces(context.prefix, continuation)
        begun_ids = tokenizer.encode(begun, add_special_tokens=False)
        whole = tokenizer.encode(begun + text, add_special_tokens=False)
        return factory.encode(context.messages) + begun_ids, whole[len(begun_ids) :]
    context, continuation = _move_spaces(context, continuation)
    if context:
        ids = tokenizer.encode(context, parse_special=parse_special)
        return ids, tokenizer.encode(context + continuation, parse_special=parse_special)[len(ids) :]
    begin = begin_token_id(factory)
    ids = tokenizer.encode(continuation, add_special_tokens=False, parse_special=parse_special)
    return (ids[:1], ids[1:]) if ids[:1] == [begin] else ([begin], ids)


def _move_spaces(context: str, continuation: str) -> tuple[str, str]:
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation


def begin_token_id(factory: SessionFactory) -> int:
    """The token before a text: BOS, or EOS if the tokenizer has none."""
    bos = require_tokenizer(factory.tokenizer).bos_token_id
    return factory.vocabulary.eos_token_id if bos is None else bos


def cut_prefix(prefix: list[int], target: Sequence[int], max_model_len: int) -> list[int]:
    """The prefix's end, as long as a slot has room for before the target. Raises PromptTooLongError without any."""
    room = max_model_len - len(target)
    if room < 1:
        raise PromptTooLongError(
            f"a continuation of {len(target)} tokens leaves no room for a token before it in model.max_model_len "
            f"{max_model_len}; raise it"
        )
    return prefix[-room:]


def rolling_windows(factory: SessionFactory, text: str, *, parse_special: bool = True) -> Iterator[TokenPair]:
    """A text in windows of `model.max_model_len` positions: each token is a target once, after as much of the text
    before it as there is room for; the last window reaches back so far that it is full."""
    ids = require_tokenizer(factory.tokenizer).encode(text, parse_special=parse_special)
    windows = get_rolling_token_windows(
        ids, begin_token_id(factory), factory.config.model.max_model_len - 1, 1
    )
    yield from map(make_disjoint_window, windows)


def needs_greedy(instances: Sequence[Instance], check_greedy: CheckGreedy) -> list[bool]:
    """Whether each request is decoded greedily, too.

    auto: if its document has no other request. Choices are compared with each other by their likelihoods; a single
    continuation is compared with what the model would have answered (LAMBADA's accuracy).
    """
    if check_greedy != "auto":
        return [check_greedy] * len(instances)
    choices: dict[tuple[object, object], set[int]] = {}
    for instance in instances:
        choices.setdefault((instance.task_name, instance.doc_id), set()).add(instance.idx)
    return [len(choices[instance.task_name, instance.doc_id]) == 1 for instance in instances]
