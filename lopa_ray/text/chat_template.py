"""ChatTemplate: renders chat messages to text, and keeps the template's special tokens apart from the user's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jinja2

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.special_token_escaper import SpecialTokenEscaper
from lopa_ray.text.special_tokens import SpecialTokens
from lopa_ray.text.template_process import TEMPLATE_PROCESS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message: TypeAlias = Mapping[str, Any]
"""A chat message in the shape of OpenAI's chat API; see `lopa_ray.text.chat_message.ChatMessage`."""

GENERATION_PROMPT = "add_generation_prompt"
"""The only parameter of transformers' `apply_chat_template` that a template variable may set. If it is false, the text
ends with the last message."""

_NO_CODE = ("whitespace", "comment_begin", "comment", "comment_end")
"""Kinds of Jinja tokens that are not code."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template of a checkpoint. transformers renders it in a sandbox, and that in a process of its own."""

    pretrained: PreTrainedTokenizerFast
    source: str
    file: Path  # the file of the template, for error messages

    @property
    def knows_tools(self) -> bool:
        """Whether the template reads the variable `tools`. Raises `CheckpointError` if it is not valid Jinja."""
        try:
            return _reads_variable(self.source, "tools")
        except jinja2.TemplateSyntaxError as error:
            raise self._wrong(f"is not valid Jinja ({error})") from None

    def render(
        self,
        messages: Sequence[Message],
        special: SpecialTokens,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Render messages to text. `variables` are further variables of the template. The text of special tokens inside
        messages, `tools` and `variables` is part of the runs of plain text. Raises `PromptError` for messages that
        cannot be rendered, and `CheckpointError` for a template that is not valid Jinja."""
        values = [list(messages), list(tools) or None, self._own_variables(variables or {})]
        try:
            escaper = SpecialTokenEscaper(special, [self.source, *values])
            rendered = self._render(escaper, values)
        except RecursionError:
            raise PromptError(
                "got messages, tools or variables that are nested too deeply; flatten them"
            ) from None
        return RenderedChat(tuple((escaper.unescape(run), token) for run, token in special.split(rendered)))

    def _own_variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """`variables` without the names of chat variables, of special tokens and of transformers' own parameters."""
        pretrained, names = self.pretrained, {"conversations", "messages"}
        names |= {*signature(type(pretrained).apply_chat_template).parameters}
        names |= {*pretrained.SPECIAL_TOKENS_ATTRIBUTES, *pretrained.special_tokens_map}
        return {name: value for name, value in variables.items() if name not in names - {GENERATION_PROMPT}}

    def _render(self, escaper: SpecialTokenEscaper, values: Sequence[Any]) -> str:
        messages, tools, variables = values
        # As transformers' `apply_chat_template` does: many templates do not accept null.
        chat = [{key: value for key, value in one.items() if value is not None} for one in messages]
        options = {name: escaper.escape(value) for name, value in variables.items()}
        try:
            return TEMPLATE_PROCESS.render(
                conversations=[escaper.escape(chat)],
                tools=escaper.escape(tools),
                chat_template=self.source,
                **{GENERATION_PROMPT: True, **self.pretrained.special_tokens_map, **options},
            )
        except CheckpointError as error:
            raise self._wrong(str(error)) from None
        except PromptError as error:
            raise PromptError(
                f"the checkpoint's chat template does not accept these messages ({escaper.unescape(str(error))}); "
                f"change their roles or order, or send plain text"
            ) from None
        except (TypeError, ValueError) as error:
            raise PromptError(
                f"got messages, tools or variables that are no JSON ({error}); use texts, numbers, true, false, null, "
                "lists and objects"
            ) from None

    def _wrong(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: the chat template {problem}; correct it, or send plain text")


@lru_cache(maxsize=8)
def _reads_variable(source: str, name: str) -> bool:
    """Whether a template reads a variable before it sets a variable of that name. The check uses Jinja's lexer only. A
    parser would have to support the statements that transformers adds to Jinja."""
    tokens = [(kind, text) for _, kind, text in jinja2.Environment().lex(source) if kind not in _NO_CODE]
    before = (first for first, then in pairwise(tokens) if then == ("name", name))
    first_use = next((token for token in before if token != ("operator", ".")), ("name", "set"))
    return first_use not in (("name", "set"), ("name", "for"))
