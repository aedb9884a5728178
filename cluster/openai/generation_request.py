"""What all requests for an answer have in common."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints

from cluster.openai.errors import invalid_value, short_repr
from cluster.openai.lopa_options import LOPA_DECODE_SETTINGS, OPENAI_FIELDS, LopaOptions
from cluster.openai.request_model import MAX_INT, RequestModel
from lopa_ray.config.generation_settings import GUIDED, MAX_GIVEN_PARTS, MAX_LOGIT_BIAS
from lopa_ray.engine.session_factory import Prompt


def _check_token_ids(value: Any) -> Any:
    for token in value if isinstance(value, dict) else ():
        if not re.fullmatch(r"[0-9]{1,10}", token):
            raise ValueError(f"got {short_repr(token)}; allowed: token ids, as text")
    return value


LogitBias: TypeAlias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIAS),
    BeforeValidator(_check_token_ids),
]


class GivenPartObject(RequestModel):
    """A part of the answer that is given."""

    at: int | None = Field(default=None, ge=0, le=MAX_INT)
    """Position of its first token in the answer. In place of `hole`."""

    hole: int | None = Field(default=None, ge=0, le=MAX_INT)
    """Positions left to the model in front of it. Without `at` and `hole` the part follows directly on what is before
    it."""

    text: str | None = Field(default=None, min_length=1)
    """Its text. In place of `token_ids`."""

    token_ids: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(min_length=1)] | None = None
    """Its token ids. In place of `text`."""


class GenerationRequest(RequestModel, ABC):
    """A request for an answer. Limits that are settings are not checked here."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        # OpenAI's
        "service_tier": ("auto", "default"),
        "store": (False,),
        # vLLM's
        "allowed_token_ids": (),
        "cache_salt": (),
        "detokenize": (True,),
        "include_stop_str_in_output": (False,),
        "kv_transfer_params": ({},),
        "length_penalty": (1,),
        "logits_processors": ([],),
        "media_io_kwargs": ({},),
        "min_p": (0,),
        "mm_processor_kwargs": ({},),
        "prompt_logprobs": (),
        "request_id": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "truncate_prompt_tokens": (),
        "use_beam_search": (False,),
        "vllm_xargs": ({},),
    }

    model: str | None = None
    """Which of the models that are served; /v1/models lists them. May be left out if it is the only one."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    """0 (the default here, unlike OpenAI's) chooses the most likely token; above 0 tokens are drawn."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the most likely tokens that have this probability together."""

    top_k: int | None = Field(default=None, ge=-1, le=MAX_INT)
    """Draw from this many most likely tokens; 0 or -1: from all."""

    repetition_penalty: float | None = Field(default=None, ge=0.01, le=100)
    """Above 1, tokens of the prompt and of the answer become less likely."""

    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Above 0, a token becomes less likely the more often the answer has it, before or behind the place."""

    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Above 0, tokens that the answer has become less likely."""

    logit_bias: LogitBias | None = None
    """Token id, as text → what is added to the token's logit."""

    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """Same request, model and seed: same tokens."""

    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(max_length=64)] | None = (
        None
    )
    """The answer ends in front of the first of these tokens, as it does at EOS."""

    min_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)
    """The answer does not end by itself before it has this many tokens."""

    ignore_eos: bool | None = None
    """The answer has all of the tokens that it may have."""

    bad_words: Annotated[list[str], Field(max_length=256)] | None = None
    """No run of whole tokens in the answer spells one of these, by itself or behind a space."""

    given_parts: Annotated[list[GivenPartObject], Field(max_length=MAX_GIVEN_PARTS)] | None = None
    """Parts of the answer that are given, in order; the model fills the holes between them (infilling). They are among
    the positions of the answer, and in its text."""

    priority: int | None = Field(default=None, ge=-MAX_INT, le=MAX_INT)
    """Of the requests of one client, those with a lower value are decoded earlier; 0 is the default."""

    stream: bool | None = None
    """Send text as server-sent events, as soon as it can no longer change."""

    user: str | None = None
    """The user of the client. Accepted, and not used."""

    prompt_cache_key: str | None = None
    """Which requests begin alike. Accepted, and not used."""

    safety_identifier: str | None = None
    """The user of the client, under OpenAI's newer name. Accepted, and not used."""

    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    """Accepted, and not used."""

    lopa: LopaOptions | None = None
    """Decode settings, and what OpenAI's API has no word for."""

    def setting_fields(self) -> dict[str, str]:
        """Decode setting, or `prompt` → the field of this request that sets it, or could."""
        given = self.constraint_fields()
        constraint = next(iter(given), self.tools_field)
        fields = {name: name for name in OPENAI_FIELDS} | {
            name: f"lopa.{name}" for name in LOPA_DECODE_SETTINGS
        }
        fields |= {"max_new_tokens": self.max_tokens_field, "top_logprobs": self.top_logprobs_field}
        fields |= {name: constraint for name in GUIDED if constraint is not None}
        if self.tools_field is not None and "guided_structural_tag" not in dict(given.values()):
            fields["guided_structural_tag"] = self.tools_field
        return {**fields, "prompt": self.prompt_field}

    prompt_field: ClassVar[str]
    """What has the prompt."""

    top_logprobs_field: ClassVar[str]
    """The field that sets how many most likely tokens are listed."""

    @property
    def tools_field(self) -> str | None:
        """The name of the field with the functions that may be called; None without functions."""
        return None

    def constraint_settings(self) -> dict[str, Any]:
        """The decode setting that constrains the answer, if any. Raises ApiError for more than one."""
        given = self.constraint_fields()
        if len(given) > 1:
            first, second, *_ = given
            raise invalid_value(second, f"excludes {first}: an answer has one constraint; give one of them")
        return dict(given.values())

    def giving_settings(self) -> dict[str, Any]:
        """The decode setting that gives parts of the answer, if any. Raises ApiError for fields that do not go
        together."""
        if not self.given_parts:
            return {}
        if self.num_top_logprobs() is not None:
            raise invalid_value(
                "given_parts",
                "got some with log-probabilities; the model decides no given token, so they have none: leave one out",
            )
        return {"given_parts": [part.model_dump(exclude_none=True) for part in self.given_parts]}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the request is left out although it asks for something, as text in ASCII."""
        return ()

    @property
    def max_tokens_field(self) -> str:
        """The field that sets the number of tokens of the answer."""
        return "max_tokens"

    @property
    @abstractmethod
    def raw(self) -> bool:
        """Text goes in as it is, without the chat template."""

    @abstractmethod
    def prompts(self) -> tuple[Prompt, ...]:
        """The prompts that the model continues."""

    @abstractmethod
    def max_new_tokens(self) -> int | None:
        """`max_tokens`, under whichever name. Raises ApiError for two that differ."""

    @abstractmethod
    def choices_options(self) -> dict[str, Any]:
        """Fields of the `ChoicesRequest` that not all requests have. Raises ApiError for what contradicts itself."""

    @abstractmethod
    def constraint_fields(self) -> dict[str, tuple[str, Any]]:
        """Each field that constrains the answer, with the decode setting that it sets and its value."""

    @abstractmethod
    def num_top_logprobs(self) -> int | None:
        """How many most likely tokens to list at each place; None: no log-probabilities at all."""
