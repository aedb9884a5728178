"""Tokenizer: converts text to token ids and back, with the tokenizer files of a checkpoint.

Only the chat template can write special tokens: `<|im_end|>` inside a message is encoded as its characters, unless the
caller asks for it (`parse_special`). Added tokens that are not special, such as `<think>`, are ordinary vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.text.chat_message import read_messages
from lopa_ray.text.chat_template import ChatTemplate, Message
from lopa_ray.text.rendered_chat import RenderedChat
from lopa_ray.text.special_tokens import SpecialTokens
from lopa_ray.text.tokenizer_files import read_tokenizer, template_file
from lopa_ray.text.tokenizer_limits import panics_as_errors
from lopa_ray.text.tool_format import tool_format, without_tool_messages

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast


def _byte_level_alphabet() -> dict[str, int]:
    """The characters with which byte-level tokenizers (such as GPT-2's) write bytes, mapped to these bytes. Printable
    bytes are written as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
"""A byte, as tokenizers with byte fallback (such as Llama 2's) write it."""


class Tokenizer:
    """A checkpoint's tokenizer and chat template. It has no state between calls, and it can be pickled."""

    def __init__(self, pretrained: PreTrainedTokenizerFast) -> None:
        self._pretrained, self._backend = pretrained, pretrained.backend_tokenizer
        # A copy is used, because switching a setting of one object between calls would not be thread-safe.
        # transformers sets truncation and padding for each text, so it is not used to encode or decode either.
        self._text_backend = self._later_backend = _as_text(self._backend)
        if getattr(self._backend.pre_tokenizer, "prepend_scheme", None) == "first":
            # SentencePiece models prepend a space to a text, but not to the later parts of the same text.
            self._later_backend = _as_text(self._backend)
            self._later_backend.pre_tokenizer.prepend_scheme = "never"
        decoder = repr(self._backend.decoder)
        self.byte_level, self._byte_fallback = "ByteLevel" in decoder, "ByteFallback" in decoder
        added = self._backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self._special_tokens = {i: token for i, token in added.items() if token.special and token.content}

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[PreTrainedTokenizerFast]]:
        # The pickled form of a backend does not include `encode_special_tokens`, so the copies are made again.
        return (Tokenizer, (self._pretrained,))

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Tokenizer | None:
        """The tokenizer in the checkpoint folder `path`, or None if the folder has none; see `read_tokenizer`. Raises
        `CheckpointError` for files that cannot be used."""
        try:
            with panics_as_errors():
                pretrained = read_tokenizer(Path(path))
                return None if pretrained is None else cls(pretrained)
        except CheckpointError:
            raise
        except Exception as error:  # the libraries raise exceptions of many types
            raise CheckpointError(
                f"{path}: its tokenizer cannot be used ({' '.join(str(error).split())}); download it again"
            ) from None

    @property
    def mask_token_id(self) -> int | None:
        token_id = self._pretrained.mask_token_id
        return token_id if isinstance(token_id, int) else None

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be used for chats without tools."""
        return self._template_source(()) is not None

    def chat_template(self, tools: Sequence[Mapping[str, Any]] = ()) -> ChatTemplate:
        """The checkpoint's template for chats with `tools`, or without any. Of several, transformers selects one.
        Raises PromptError if the checkpoint has no template."""
        source = self._template_source(tools)
        if source is None:
            raise PromptError("got chat messages, but the checkpoint has no chat template; send plain text")
        named, folder = self._pretrained.chat_template, Path(self._pretrained.name_or_path)
        names = named if isinstance(named, dict) else {"default": named}
        name = next(name for name, text in names.items() if text == source)
        return ChatTemplate(self._pretrained, source, template_file(folder, name))

    def _template_source(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        try:
            return self._pretrained.get_chat_template(tools=[*map(dict, tools)] or None) or None
        except ValueError:  # there is no template, or there are several and none fits this chat
            return None

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. The model's vocabulary may be larger, with padding."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def bos_token_id(self) -> int | None:
        token: int | None = self._pretrained.bos_token_id
        return token

    @property
    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Id of each added token → its text, and whether it is special. Special tokens are not shown in answers."""
        added = self._backend.get_added_tokens_decoder()
        return {token: (entry.content, entry.special) for token, entry in added.items()}

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """Encode user text to ids, with `add_special_tokens` together with the special tokens that the tokenizer adds
        to every text. The text of special tokens is encoded as plain characters, or with `parse_special` as these
        tokens, the mask token among them. Raises `PromptError` for text that cannot be encoded, and `CheckpointError`
        for a tokenizer that fails."""
        backend = self._backend if parse_special else self._text_backend
        return self._encode_text(text, backend, add_special_tokens=add_special_tokens)

    def encode_later_part(self, text: str, *, parse_special: bool = False) -> list[int]:
        """See `encode`, of text that continues another text, without special tokens that begin or end every text."""
        return self._encode_text(text, self._backend if parse_special else self._later_backend)

    def encode_markup(self, text: str) -> list[int]:
        """Encode text that does not come from a user to ids. Special tokens are recognised in it."""
        return self._encode_text(text, self._backend)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, shown: Collection[str] = ()
    ) -> str:
        """Decode `ids` to text. Ids beyond the vocabulary are left out. Special tokens in `shown` are never skipped."""
        shown_ids = {token for token, added in self._special_tokens.items() if added.content in shown}
        if not skip_special_tokens or shown_ids.isdisjoint(ids):
            return self._decode(list(ids), skip_special_tokens)
        runs = (list(run) for _, run in groupby(ids, key=shown_ids.__contains__))
        return "".join(self._decode(run, run[0] not in shown_ids) for run in runs)

    def _decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        try:
            with panics_as_errors():
                return str(self._backend.decode(ids, skip_special_tokens=skip_special_tokens))
        except RuntimeError as error:
            raise self._failed("decode ids", error) from None

    def _failed(self, at: str, error: RuntimeError) -> CheckpointError:
        folder = self._pretrained.name_or_path
        return CheckpointError(f"{folder}: its tokenizer cannot {at} ({error}); download it again")

    def token_text(self, token: int) -> str:
        """The text of one token after another token, with the space that decoders may strip at the beginning of a text.
        A special token is shown by name, and an id without text as `[id]`."""
        if self._backend.id_to_token(token) is None:
            return f"[{token}]"
        if token in self._special_tokens:
            return str(self._special_tokens[token].content)
        alone, twice = (self._decode([token] * times, False) for times in (1, 2))
        return alone if self.byte_level else twice.removeprefix(alone)

    def token_string(self, token: int) -> str:
        """One token as the vocabulary writes it (such as the byte-level `Ġpens`); `[id]` for an unknown id."""
        return self._backend.id_to_token(token) or f"[{token}]"

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of `token_text`, or the part of a character that the token stands for."""
        written = self._backend.id_to_token(token)
        if written is None or token in self._special_tokens:
            return self.token_text(token).encode()
        if self.byte_level:  # a token with a character that stands for no byte is text as it is
            in_alphabet = _BYTE_OF.keys() >= set(written)
            return bytes(map(_BYTE_OF.__getitem__, written)) if in_alphabet else written.encode()
        byte = _BYTE_TOKEN.fullmatch(written) if self._byte_fallback else None
        return self.token_text(token).encode() if byte is None else bytes.fromhex(byte[1])

    def regular_token_bytes(self, token: int) -> bytes:
        """The `token_bytes` of the ordinary tokens of a byte-level vocabulary; empty for any other id."""
        is_regular = self.byte_level and token not in self._added_ids
        written = self._backend.id_to_token(token) if is_regular else None
        return self.token_bytes(token) if written is not None and _BYTE_OF.keys() >= set(written) else b""

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The ids of `messages` under the checkpoint's chat template: `render_chat`, then `encode_chat`."""
        return self.encode_chat(self.render_chat(messages, tools=tools, variables=variables))

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Render `messages` to text with the checkpoint's chat template, up to where the assistant's answer begins.
        `tools` have the form of OpenAI's API; if the template does not support them, they are described in messages.
        `variables` are further variables of the template. Raises `PromptError` for messages that cannot be rendered,
        and `CheckpointError` for a template that is not valid Jinja."""
        template = self.chat_template(tools)
        messages = read_messages(messages)
        if not template.knows_tools:
            messages, tools = without_tool_messages(messages, tools, tool_format(template)), ()
        return template.render(messages, self._special_texts, tools=tools, variables=variables)

    @cached_property
    def _special_texts(self) -> SpecialTokens:
        return SpecialTokens(self._special_tokens.values())

    def encode_chat(self, chat: RenderedChat, *, continues: bool = False) -> list[int]:
        """Encode a rendered chat to ids, with the special tokens that the template wrote and no others. With
        `continues` the text follows another, so that it gets no space of a beginning. Raises `PromptError` for text
        that cannot be encoded."""
        ids: list[int] = []
        by_text = {token.content: i for i, token in self._special_tokens.items()}
        for at, (text, special) in enumerate(chat.runs):
            ids += self._encode_text(text, self._later_backend if at or continues else self._text_backend)
            if special is not None:
                ids.append(by_text[special])
        return ids

    def _encode_text(self, text: str, backend: Backend, *, add_special_tokens: bool = False) -> list[int]:
        if not text and not add_special_tokens:
            return []
        try:
            with panics_as_errors():
                encoding = backend.encode(text, add_special_tokens=add_special_tokens)
        except RuntimeError as error:
            raise self._failed("encode text", error) from None
        except Exception as error:  # the library raises plain Exception, for example for lone surrogates
            raise PromptError(
                f"got text that cannot be encoded ({error}); it must be valid Unicode"
            ) from None
        if backend is self._backend:
            return list(encoding.ids)
        for token, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if token in self._special_tokens and not added:
                raise PromptError(
                    f"got text that this tokenizer turns into the special token "
                    f"{self._backend.id_to_token(token)!r}; remove it from the prompt, or send token ids"
                )
        return list(encoding.ids)


def _as_text(backend: Backend) -> Backend:
    copy = deepcopy(backend)
    copy.encode_special_tokens = True
    return copy


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Raises `PromptError` if it is None, because text cannot be encoded without one."""
    if tokenizer is None:
        raise PromptError(
            "got text, but the checkpoint has no tokenizer (tokenizer.json, or vocab.json and "
            "merges.txt); add its files or send token ids"
        )
    return tokenizer
