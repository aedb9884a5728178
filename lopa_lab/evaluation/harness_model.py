"""LopaRayLM: a decode group, or several, as a model of lm-evaluation-harness."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_lab.evaluation.engines import Groups, config_of, on_groups
from lopa_lab.evaluation.harness_requests import CheckGreedy, parse_generation
from lopa_lab.evaluation.likelihoods import Likelihoods
from lopa_lab.evaluation.totals import DecodeTotals
from lopa_lab.requests import answered, cut_at_stop, encode_prompt, fitting_prompt
from lopa_ray import __version__
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.likelihood_session import DEFAULT_MC_NUM
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.text.chat_template import Message
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

NAME = "lopa_ray"
"""The model's name for `--model`."""

logger = logging.getLogger("lopa.evaluation")


_opened: ContextVar[list[LopaRayLM] | None] = ContextVar("_opened", default=None)


@contextmanager
def opened_models() -> Iterator[list[LopaRayLM]]:
    """The models that the harness opens meanwhile, which it neither shows nor closes; they are closed at the end."""
    models: list[LopaRayLM] = []
    token = _opened.set(models)
    try:
        yield models
    finally:
        _opened.reset(token)
        for model in models:
            model.close()


@register_model(NAME)
class LopaRayLM(LM):  # type: ignore[misc]  # the harness has no types
    """Answers the harness's requests with LoPA, or any other decoder; all of a call are in flight together."""

    def __init__(
        self,
        config: str | Config = "demo",
        *,
        local: bool = False,
        groups: int = 1,
        mc_num: int = DEFAULT_MC_NUM,
        check_greedy: CheckGreedy = "auto",
        parse_special: bool = True,
        **arguments: Any,
    ) -> None:
        """`config` is a preset or a YAML file, and `arguments` go on top (see `config_of`), or it has all settings.
        Groups start at first use.

        `local` decodes in this process, without Ray; `groups` are started on the Ray at RAY_ADDRESS, or on a local
        one. `mc_num` draws estimate a log-likelihood (see `loglikelihood`), and `check_greedy` says whose
        continuations are held against greedy decoding (see `needs_greedy`). `parse_special`: see `encode_prompt`;
        the harness's models of transformers recognise special tokens in text, too. Raises SettingsError.
        """
        super().__init__()
        if local and groups != 1:
            raise SettingsError(f"model_args: got groups={groups} with local=True; leave one out")
        if not isinstance(parse_special, bool):
            raise SettingsError(f"parse_special: got {parse_special!r}; allowed: True, False")
        self._parse_special = parse_special
        self._config = config if isinstance(config, Config) else config_of(config, arguments)
        self._groups = Groups(self._config, groups, local=local)
        self._likelihoods = Likelihoods(self._groups, mc_num, check_greedy, parse_special=parse_special)
        self.totals: defaultdict[str, DecodeTotals] = defaultdict(DecodeTotals)
        """Totals by task, for tasks that generate."""
        opened_here = _opened.get()
        if opened_here is not None:
            opened_here.append(self)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Any = None) -> Self:
        """See `create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string))

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Any = None) -> Self:
        """The model of these arguments alone: the harness's own batch size and device, which it names always, have
        no meaning here. `model.max_num_seqs` requests are in flight per group, on `model.device`."""
        return cls(**arg_dict)

    # Requests

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answers' texts, each up to its first stop string. Raises what ended a request that has no answer."""
        began = time.perf_counter()
        seen: Counter[str] = Counter()
        prepared = []
        for request in requests:
            key = json.dumps(request.args, sort_keys=True, default=str)
            prepared.append(self._prepare(request, repeat=seen[key]))
            seen[key] += 1
        answers: dict[int, str] = {}
        with tqdm(total=len(prepared), disable=disable_tqdm, desc="Decoding") as progress:
            for index, result in self._decode([session for _, session in prepared]):
                totals = self.totals[requests[index].task_name or ""]
                totals.add([result])
                totals.tokens += result.tokens
                text = answers[index] = cut_at_stop(result.text or "", prepared[index][0])
                self.cache_hook.add_partial("generate_until", requests[index].args, text)
                progress.update()
        seconds = time.perf_counter() - began
        for task in {request.task_name or "" for request in requests}:
            self.totals[task].seconds += seconds
        return [answers[index] for index in range(len(requests))]

    def _prepare(self, instance: Instance, repeat: int) -> tuple[tuple[str, ...], DecodeSession]:
        """The stop strings of a request of the harness, and the session that answers it."""
        context, generation = instance.args
        settings, stop = self._settings(generation, repeat)
        ids = self._encode(context)
        fitting = fitting_prompt(self._engine, ids, settings.max_new_tokens)
        self.totals[instance.task_name or ""].truncated_prompts += len(fitting) < len(ids)
        return stop, self._engine.create_session(fitting, settings)

    def _settings(
        self, generation: Mapping[str, Any], repeat: int
    ) -> tuple[GenerationSettings, tuple[str, ...]]:
        return parse_generation(generation, self._engine.config.decode, repeat)

    def _encode(self, context: str) -> list[int]:
        if isinstance(context, ChatPrompt):
            return encode_prompt(self._engine, context.messages, context.prefix)
        return encode_prompt(self._engine, context, parse_special=self._parse_special)

    def _decode(self, sessions: Sequence[DecodeSession]) -> Iterator[tuple[int, GenerationResult]]:
        """(index, result) as they end. Raises what ended a request that has no result."""

        def run(engine: Engine, part: range) -> Iterator[tuple[int, GenerationResult]]:
            for at, result in answered(engine.run([sessions[index] for index in part])):
                yield part[at], result

        return on_groups(self._groups.engines, len(sessions), run)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """A bound on each continuation's log-probability in nats, estimated by `mc_num` draws (LLaDA, arXiv
        2502.09992, equation 6), and whether greedy decoding gives it.

        The second is False, too, for continuations that `check_greedy` leaves out. Raises what ended a request.
        """
        return self._likelihoods.of_continuations(requests, self.cache_hook, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The sum of such bounds, for each text, on its windows of `model.max_model_len` positions."""
        return self._likelihoods.of_texts(requests, self.cache_hook, disable_tqdm)

    # Chats

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> ChatPrompt:
        """The chat as the checkpoint's template renders it; without a generation prompt the last message, the
        assistant's, is how the answer begins. Raises PromptError for a checkpoint without a template."""

        def render(messages: Sequence[Message]) -> str:
            ids = self._tokenizer.apply_chat_template(messages)
            return self._tokenizer.decode(ids, skip_special_tokens=False)

        return ChatPrompt.of_history(chat_history, add_generation_prompt, render=render)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the checkpoint's template; None if it is not to be used. Raises SettingsError for another."""
        if chat_template is False or chat_template is None:
            return None
        if chat_template is not True:
            raise SettingsError(
                f"--apply_chat_template: got {chat_template!r}; allowed: no name, for the checkpoint's own template"
            )
        return self._tokenizer.chat_template().source

    @property
    def tokenizer_name(self) -> str:
        """Names the checkpoint in the harness's caches of requests."""
        return str(self._config.model.path).replace("/", "__")

    @property
    def _engine(self) -> Engine:
        return self._groups.engines[0]

    @property
    def _tokenizer(self) -> Tokenizer:
        return require_tokenizer(self._engine.tokenizer)

    # Results

    def get_model_info(self) -> Mapping[str, Any]:
        """Entries for `config` in the harness's results: version, settings, and per task what decoding took."""
        return {
            NAME: {
                "version": __version__,
                "settings": self._engine.config.as_dict(),
                "parse_special": self._parse_special,
                "tasks": {
                    **{task: totals.as_dict() for task, totals in self.totals.items()},
                    **self._likelihoods.totals_by_task(),
                },
            }
        }

    def close(self) -> None:
        """End the groups."""
        self._groups.close()
