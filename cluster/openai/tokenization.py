"""Text to tokens and back: the requests and responses of /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cluster.choices.messages import PromptToTokenize
from cluster.openai.errors import ApiError, invalid_value
from cluster.openai.request_model import JsonObject, ModelRequest
from cluster.openai.response_model import ResponseModel
from cluster.openai.tools import Tools, unique_tools
from lopa_ray.config.http_field import MAX_INT
from lopa_ray.text.chat_message import ChatMessage


class TokenizeRequest(ModelRequest):
    """A text or a chat, one of the two."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chat_template": (),
        "continue_final_message": (False,),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    }

    prompt: str | None = None
    """Text, without chat template."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    """A chat, which the chat template turns into text that ends where the answer begins."""

    tools: Tools | None = None
    """Functions that a chat template lists for the model."""

    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, such as enable_thinking."""

    add_generation_prompt: bool | None = None
    """False: end with the chat's last message, and not where the answer begins."""

    add_special_tokens: bool | None = None
    """Whether a text has the tokens that the tokenizer puts around every text; null is true. A chat has only the tokens
    of its template."""

    parse_special: bool | None = None
    """False: read the names of special tokens in a text as characters, and not as these tokens. In a chat they are
    always characters."""

    return_token_strs: bool | None = None
    """Send each token as the vocabulary writes it, too."""

    @property
    def prompt_field(self) -> str:
        return "prompt" if self.messages is None else "messages"

    def as_prompt(self) -> PromptToTokenize:
        """The prompt for a model. Raises ApiError (400) for two prompts, or for none."""
        if self.messages is None:
            if self.prompt is None:
                raise ApiError(
                    400, "got neither prompt nor messages; add one", "missing_parameter", param="prompt"
                )
            return PromptToTokenize(
                self.prompt, self.add_special_tokens is not False, self.parse_special is not False
            )
        if self.prompt is not None:
            raise invalid_value("prompt", "excludes messages; leave one of them out")
        for name in ("add_special_tokens", "parse_special"):
            if getattr(self, name):
                message = "got true with messages, whose special tokens are the template's: leave it out"
                raise invalid_value(name, message)
        variables = dict(self.chat_template_kwargs or {})
        if self.add_generation_prompt is not None:
            variables["add_generation_prompt"] = self.add_generation_prompt
        return PromptToTokenize(
            tuple(message.template_message() for message in self.messages),
            tools=unique_tools([tool.model_dump(exclude_none=True) for tool in self.tools or ()]),
            template_variables=variables,
        )


class DetokenizeRequest(ModelRequest):
    """Tokens of a model."""

    tokens: list[Annotated[int, Field(ge=0, le=MAX_INT)]] = Field(fail_fast=True)
    """Ids of the model's vocabulary."""


class DetokenizeResponse(ResponseModel):
    """The text of tokens."""

    prompt: str
