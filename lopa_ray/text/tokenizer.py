"""Text to token ids and back, with the tokenizer files that a checkpoint publishes.

Text that a user writes stays text: `<|im_end|>` or the mask token inside a prompt is encoded
as the characters it consists of. Only a chat template may write special tokens. (Added tokens
that a checkpoint does not mark as special, such as `<think>`, are ordinary vocabulary.)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer as Backend, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.model.json_file import read_json
from lopa_ray.text.chat_template import ChatTemplate, Message, check_messages
from lopa_ray.text.tool_format import tool_format, without_tool_messages

_TOKENIZER_CONFIG, _CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_ADDED_TOKEN_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_SPECIAL_TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
# How Qwen2 splits text before BPE: contractions, words, single digits, punctuation, space.
_QWEN2_PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer", None)


def _byte_level_alphabet() -> dict[str, int]:
    """How byte-level tokenizers (as GPT-2's) write bytes: printable ones as they are, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


class Tokenizer:
    """A checkpoint's tokenizer and chat template. Stateless between calls, and picklable."""

    def __init__(self, backend: Backend, template: ChatTemplate | None) -> None:
        """`backend` recognises special tokens."""
        self._backend, self._template = backend, template
        # A copy that reads special tokens as text; switching one object would not be thread-safe.
        self._text_backend = Backend.from_str(backend.to_str())
        self._text_backend.encode_special_tokens = True
        self.byte_level = "ByteLevel" in json.dumps(json.loads(backend.to_str()).get("decoder"))
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self._special_tokens = {i: token for i, token in added.items() if token.special and token.content}

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[Backend, ChatTemplate | None]]:
        # The copy's `encode_special_tokens` is not part of its pickled form.
        return (Tokenizer, (self._backend, self._template))

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Tokenizer | None:
        """The tokenizer in the checkpoint folder `path`, or None if it has none.

        Reads tokenizer.json, or else Qwen2's vocab.json and merges.txt, with the added tokens and
        the chat template beside them. Raises `CheckpointError` for files that cannot be used.
        """
        folder = Path(path)
        tokenizer_config = (
            read_json(folder / _TOKENIZER_CONFIG) if (folder / _TOKENIZER_CONFIG).exists() else {}
        )
        backend = _read_backend(folder, tokenizer_config)
        if backend is None:
            return None
        backend.no_truncation()
        backend.no_padding()
        names = _read_special_tokens(folder, tokenizer_config)
        _add_tokens(backend, folder, tokenizer_config, names)
        return cls(backend, _read_template(folder, tokenizer_config, names))

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can be used."""
        return self._template is not None

    @property
    def chat_template(self) -> ChatTemplate:
        """Raises PromptError if the checkpoint has none."""
        if self._template is None:
            raise PromptError("got chat messages, but the checkpoint has no chat template; send plain text")
        return self._template

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. A model's own vocabulary may be padded beyond it."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Of each token beside the vocabulary proper its text, and whether it is special, which no answer shows."""
        added = self._backend.get_added_tokens_decoder()
        return {token: (entry.content, entry.special) for token, entry in added.items()}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, special tokens' text being plain characters, with what the tokenizer adds itself."""
        return self._encode_text(text, add_special_tokens=add_special_tokens)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of text that no user wrote: special tokens are recognised in it."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, shown: Collection[str] = ()
    ) -> str:
        """Text of `ids`; ids beyond the vocabulary are left out. `shown`: special tokens that are not skipped."""
        shown_ids = {token for token, added in self._special_tokens.items() if added.content in shown}
        if not skip_special_tokens or shown_ids.isdisjoint(ids):
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        runs = (list(run) for _, run in groupby(ids, key=shown_ids.__contains__))
        return "".join(self._backend.decode(run, skip_special_tokens=run[0] not in shown_ids) for run in runs)

    def token_text(self, token: int) -> str:
        """One token as text to show, special tokens by name; `[id]` for an id that has no text."""
        if self._backend.id_to_token(token) is None:
            return f"[{token}]"
        return self._backend.decode([token], skip_special_tokens=False)

    def token_string(self, token: int) -> str:
        """One token as the vocabulary writes it (byte-level ones: `Ġpens`); `[id]` for an id that it does not have."""
        return self._backend.id_to_token(token) or f"[{token}]"

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes that one token stands for, which may be a part of a character."""
        written = self._backend.id_to_token(token)
        if written is not None and self.byte_level and token not in self._special_tokens:
            return bytes(_BYTE_OF[char] for char in written if char in _BYTE_OF)
        return self.token_text(token).encode()

    def regular_token_bytes(self, token: int) -> bytes:
        """As `token_bytes`, for the ordinary tokens of a byte-level vocabulary; nothing for any other id."""
        written = self._backend.id_to_token(token)
        if (
            written is None
            or not self.byte_level
            or token in self._added_ids
            or not _BYTE_OF.keys() >= set(written)
        ):
            return b""
        return bytes(_BYTE_OF[char] for char in written)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of `messages` as the checkpoint's chat template writes them.

        Ends where the assistant's answer begins. `tools` are those of OpenAI's API, `variables` further variables of
        the template. The ids are those of the rendered text, but special tokens are recognised only where the
        template wrote them. A template that knows no tools gets them in messages. Raises `PromptError` for
        messages that cannot be rendered, `CheckpointError` for a template that cannot be read.
        """
        template = self.chat_template
        check_messages(messages)
        if not template.knows_tools:
            messages, tools = without_tool_messages(messages, tools, tool_format(template)), ()
        ids: list[int] = []
        by_text = {token.content: i for i, token in self._special_tokens.items()}
        runs = template.render(
            messages, list(self._special_tokens.values()), tools=tools, variables=variables
        )
        for text, special in runs:
            ids += self._encode_text(text)
            if special is not None:
                ids.append(by_text[special])
        return ids

    def _encode_text(self, text: str, add_special_tokens: bool = False) -> list[int]:
        if not text and not add_special_tokens:
            return []
        try:
            encoding = self._text_backend.encode(text, add_special_tokens=add_special_tokens)
        except Exception as error:  # the library raises bare exceptions, and text may hold lone surrogates
            raise PromptError(
                f"got text that cannot be encoded ({error}); it must be valid Unicode"
            ) from None
        for token, added in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
            if token in self._special_tokens and not added:
                raise PromptError(
                    f"got text that this tokenizer turns into the special token "
                    f"{self._backend.id_to_token(token)!r}; remove it from the prompt, or send token ids"
                )
        return list(encoding.ids)


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """`tokenizer` itself; raises `PromptError` if the checkpoint has none and text was given."""
    if tokenizer is None:
        raise PromptError(
            "got text, but the checkpoint has no tokenizer (tokenizer.json, or vocab.json and "
            "merges.txt); add its files or send token ids"
        )
    return tokenizer


def _read_backend(folder: Path, tokenizer_config: Mapping[str, Any]) -> Backend | None:
    tokenizer_json, vocab, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    try:
        if tokenizer_json.exists():
            return Backend.from_file(str(tokenizer_json))
        if not vocab.exists() and not merges.exists():
            return None
        model = BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the library raises bare exceptions
        name = tokenizer_json if tokenizer_json.exists() else f"{vocab} and {merges.name}"
        raise CheckpointError(f"{name}: cannot be read as a tokenizer ({error}); download it again") from None
    if (kind := tokenizer_config.get("tokenizer_class")) not in _QWEN2_CLASSES:
        allowed = ", ".join(filter(None, _QWEN2_CLASSES))
        raise CheckpointError(
            f"{folder / _TOKENIZER_CONFIG}: got tokenizer_class = {kind!r} without tokenizer.json; {vocab.name} and "
            f"{merges.name} are read for {allowed} only: save the tokenizer as tokenizer.json"
        )
    backend = Backend(model)
    backend.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN2_PRE_TOKENIZER), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return backend


def _read_special_tokens(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` … -> text, from tokenizer_config.json or else special_tokens_map.json."""
    older = folder / "special_tokens_map.json"
    names: dict[str, str] = {}
    for source in (read_json(older) if older.exists() else {}, tokenizer_config):
        for key in _SPECIAL_TOKEN_KEYS:
            value = source.get(key)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                names[key] = value
    return names


def _add_tokens(
    backend: Backend, folder: Path, tokenizer_config: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """Add the tokens that the configuration lists beyond the vocabulary, under the ids that it lists."""
    listed = tokenizer_config.get("added_tokens_decoder")
    where = folder / _TOKENIZER_CONFIG
    if listed is None and (folder / "added_tokens.json").exists():
        where = folder / "added_tokens.json"
        special = {str(text) for text in tokenizer_config.get("additional_special_tokens") or ()}
        listed = {i: {"content": text, "special": text in special} for text, i in read_json(where).items()}
    try:
        tokens = [
            (
                int(i),
                AddedToken(
                    str(token["content"]), **{flag: bool(token.get(flag)) for flag in _ADDED_TOKEN_FLAGS}
                ),
            )
            for i, token in (listed or {}).items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: the added tokens cannot be read ({error!r}); download it again"
        ) from None
    for i, token in sorted(tokens, key=lambda pair: pair[0]):
        backend.add_tokens([token])
        if (given := backend.token_to_id(token.content)) != i:
            raise CheckpointError(
                f"{where}: got token {token.content!r} with id {i}, but the vocabulary gives it {given}; ids "
                f"must follow the vocabulary without a gap: use files of one checkpoint"
            )
    # A token with a role (the mask, say) is special even where a file forgets to say so.
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    backend.add_special_tokens(
        [
            AddedToken(text, special=True, normalized=False)
            for text in sorted(set(names.values()) - special)
            if backend.token_to_id(text) is not None
        ]
    )


def _read_template(
    folder: Path, tokenizer_config: Mapping[str, Any], names: Mapping[str, str]
) -> ChatTemplate | None:
    file = folder / _CHAT_TEMPLATE
    try:
        found: Any = (
            file.read_text(encoding="utf-8") if file.exists() else tokenizer_config.get("chat_template")
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}); download it again") from None
    if isinstance(found, list):  # several named templates: the one for plain chat
        found = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}.get(
            "default"
        )
    if found is not None and not isinstance(found, str):
        raise CheckpointError(
            f"{folder / _TOKENIZER_CONFIG}: got chat_template of type {type(found).__name__}; it must be text: "
            "correct the file"
        )
    return (
        ChatTemplate(found, file if file.exists() else folder / _TOKENIZER_CONFIG, names) if found else None
    )
