"""The common part of all requests for an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, StringConstraints, create_model

from cluster.choices.messages import ChoicesRequest
from cluster.openai.errors import invalid_value
from cluster.openai.lopa_options import OPENAI_FIELDS, LopaOptions, decode_settings
from cluster.openai.request_model import UNUSED, ModelRequest, RequestModel
from cluster.openai.vllm_xargs import VllmXargs
from lopa_ray.config.generation_settings import GUIDED, MAX_GIVEN_PARTS, GenerationSettings
from lopa_ray.config.http_field import MAX_INT, http_fields
from lopa_ray.engine.session_factory import Prompt

MAX_CHOICES, MAX_STOP = 16, 64  # choices of a request, and its stop texts

FIELDS_OF_SETTINGS = {
    name: field
    for name, field in http_fields(GenerationSettings).items()
    if field.fields is None and not field.in_lopa
}


def _request_field(name: str) -> Any:
    field, setting = FIELDS_OF_SETTINGS[name], GenerationSettings.model_fields[name]
    limits = [Field(le=MAX_INT)] if setting.annotation is int else []
    kind = field.type or Annotated[(setting.annotation, field, *setting.metadata, *limits)]
    off = f" Off: {', '.join(map(str, field.off))}." if field.off else ""
    return kind | None, Field(default=None, description=f"{setting.description}{off}")


_SettingFields: Any = create_model(
    "_SettingFields", __base__=RequestModel, **{name: _request_field(name) for name in FIELDS_OF_SETTINGS}
)


class GivenPartObject(RequestModel):
    """A part of the answer that is given."""

    at: int | None = Field(default=None, ge=0, le=MAX_INT)
    """Position of its first token in the answer. In place of `hole`."""

    hole: int | None = Field(default=None, ge=0, le=MAX_INT)
    """Positions left to the model before it. Without `at` and `hole` the part follows directly on what is before
    it."""

    text: str | None = Field(default=None, min_length=1)
    """The part's text, in place of `token_ids`."""

    token_ids: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT)]], Field(min_length=1)] | None = None
    """The part's token ids, in place of `text`."""


class GenerationRequest(_SettingFields, ModelRequest, ABC):
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
    }

    prompt_field: ClassVar[str]
    """The name of the field with the prompt."""

    top_logprobs_field: ClassVar[str]
    """The field that sets how many most likely tokens are listed."""

    raw: ClassVar[bool] = False
    """Text goes in as it is, without the chat template."""

    given_parts: Annotated[list[GivenPartObject], Field(max_length=MAX_GIVEN_PARTS)] | None = None
    """Parts of the answer that are given, in order; the model fills the holes between them (infilling). They are among
    the positions of the answer, and in its text."""

    priority: int | None = Field(default=None, ge=-MAX_INT, le=MAX_INT)
    """Requests with a lower value are decoded earlier than others of the same client; 0 is the default."""

    stream: bool | None = None
    """Send text as server-sent events, as soon as it can no longer change."""

    vllm_xargs: VllmXargs | None = None
    """A first canvas, in vLLM's words."""

    user: str | None = UNUSED
    prompt_cache_key: str | None = UNUSED
    safety_identifier: str | None = UNUSED
    metadata: (
        Annotated[
            dict[
                Annotated[str, StringConstraints(max_length=64)],
                Annotated[str, StringConstraints(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = UNUSED

    lopa: LopaOptions | None = None
    """Decode settings, and what OpenAI's API has no word for."""

    def setting_fields(self) -> dict[str, str]:
        """Decode setting, or `prompt` → the field of this request that sets it, or could."""
        given = self.constraint_fields()
        constraint = next(iter(given), self.tools_field)
        fields = {name: name for name in OPENAI_FIELDS}
        fields |= {name: f"lopa.{name}" for name in decode_settings()}
        fields |= {"max_new_tokens": self.max_tokens_field, "top_logprobs": self.top_logprobs_field}
        fields |= {name: constraint for name in GUIDED if constraint is not None}
        if self.tools_field is not None and "guided_structural_tag" not in dict(given.values()):
            fields["guided_structural_tag"] = self.tools_field
        fields |= {name: field for name, (field, _) in self.first_canvas().items()}
        return {**fields, "prompt": self.prompt_field}

    @property
    def tools_field(self) -> str | None:
        """The field of the tools; None without functions."""
        return None

    def as_choices_request(self, request_id: str, client: str = "") -> ChoicesRequest:
        """Raises ApiError (400) for fields that contradict each other, and beyond the limits of choices and stops."""
        lopa = self.lopa or LopaOptions()
        prompts, options = self.prompts(), self.choices_options()
        n, stop = options.get("n", 1), options.get("stop", ())
        if n * len(prompts) > MAX_CHOICES:
            got = f"n {n}" if len(prompts) == 1 else f"{len(prompts)} prompts with n {n}"
            message = f"got {got}; allowed: {MAX_CHOICES} choices per request; split the request"
            raise invalid_value("n", message)
        if len(stop) > MAX_STOP:
            raise invalid_value("stop", f"got {len(stop)} texts; allowed: {MAX_STOP}; leave some out")
        if lopa.stream_canvas and not self.stream:
            raise invalid_value("lopa.stream_canvas", "needs stream: true; add that, or leave it out")
        if lopa.partial and lopa.deadline is None:
            raise invalid_value("lopa.partial", "got true without a deadline; add lopa.deadline")
        return ChoicesRequest(
            id=request_id,
            prompts=prompts,
            settings=self.decode_settings(),
            client=client,
            priority=self.priority or 0,
            raw=self.raw,
            logprobs=self.num_top_logprobs() is not None,
            stream=bool(self.stream),
            stream_canvas=bool(lopa.stream_canvas),
            trace=bool(lopa.trace),
            deadline_s=lopa.deadline,
            partial=bool(lopa.partial),
            **options,
        )

    def decode_settings(self) -> dict[str, Any]:
        """An empty list sets nothing. Raises ApiError for fields that do not go together."""
        given = {name: getattr(self, name) for name in FIELDS_OF_SETTINGS}
        given |= {"max_new_tokens": self.max_new_tokens(), "top_logprobs": self.num_top_logprobs()}
        settings = {name: value for name, value in given.items() if value is not None and value != []}
        # Off is off also where the model's default is not.
        off = {name: None for name, field in FIELDS_OF_SETTINGS.items() if settings.get(name) in field.off}
        lopa = {} if self.lopa is None else self.lopa.decode_settings
        constraints = self.constraint_fields()
        if len(constraints) > 1:
            first, second, *_ = constraints
            raise invalid_value(second, f"excludes {first}: an answer has one constraint; give one of them")
        settings |= lopa | off | dict(constraints.values()) | self.giving_settings()
        for name, (field, value) in self.first_canvas().items():
            if name in ("draft", "given_parts") and name in settings:
                raise invalid_value(field, f"excludes {name}, which says the same: give one of them")
            settings[name] = value
        return settings

    def first_canvas(self) -> dict[str, tuple[str, Any]]:
        """See `VllmXargs.decode_settings`."""
        xargs = self.vllm_xargs or VllmXargs()
        if xargs.diffusion_pinned and not xargs.diffusion_read_only and self.num_top_logprobs() is not None:
            message = "got some with log-probabilities, which needs diffusion_read_only; leave one out"
            raise invalid_value("vllm_xargs.diffusion_pinned", message)
        return xargs.decode_settings(self.max_new_tokens())

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
        """The parts of the request that are left out although they ask for something, as text in ASCII."""
        return ()

    @property
    def max_tokens_field(self) -> str:
        return "max_tokens"

    def max_new_tokens(self) -> int | None:
        """Raises ApiError for two fields that differ."""
        limit: int | None = getattr(self, self.max_tokens_field)
        return limit

    def choices_options(self) -> dict[str, Any]:
        """Fields of the `ChoicesRequest` that not all requests have. Raises ApiError for what contradicts itself."""
        return {}

    @abstractmethod
    def prompts(self) -> tuple[Prompt, ...]: ...

    @abstractmethod
    def constraint_fields(self) -> dict[str, tuple[str, Any]]:
        """Each field that constrains the answer, with the decode setting that it sets and its value."""

    @abstractmethod
    def num_top_logprobs(self) -> int | None:
        """How many most likely tokens to list at each place; None: no log-probabilities at all. Raises ApiError for
        fields that do not go together."""
