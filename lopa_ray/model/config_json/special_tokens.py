"""SpecialTokens: the token ids that a checkpoint names, in `config.json` or in `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from lopa_ray.errors import CheckpointError

Json: TypeAlias = Mapping[str, Any]

NO_MASK = -1
"""Stands for the id of a mask token in models that have none: no id of a vocabulary is equal to it."""

_OTHER_KEYS = ("mask_token_id", "pad_token_id", "bos_token_id", "delete_token_id", "split_token_id")
TOKEN_ID_KEYS = ("eos_token_id", *_OTHER_KEYS)

_GENERATION = "generation_config.json"


class MissingMaskTokenError(CheckpointError):
    """Neither the files of a checkpoint's configuration nor its family name a mask token in the vocabulary."""

    vocab_size = 0  # a mask token from elsewhere has to be below


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids that decoding needs, and further ids that a checkpoint names."""

    mask: int
    eos: int
    pad: int | None
    bos: int | None
    delete: int | None  # of a model that edits by deletions and insertions, as the next one
    split: int | None
    stops: tuple[int, ...]  # further ids that end an answer

    @classmethod
    def read(cls, raw: Json, generation: Json, family_mask: int | None, vocab: int, where: str) -> Self:
        """Read config.json `raw`, and where it has none `generation`; null is none. EOS is the first id of both
        files' `eos_token_id`, and the others are stop tokens. Where neither has a mask token it is `family_mask`, if
        the vocabulary reaches so far. Raises `CheckpointError`, naming `where` and the key, for one that is missing or
        not in the vocabulary, and for a mask token that ends answers."""
        ends = _end_token_ids(raw, vocab, where)
        ends = ends + _end_token_ids(generation, vocab, f"{where} ({_GENERATION})")
        mask, pad, bos, delete, split = (_token_id(key, raw, generation, vocab, where) for key in _OTHER_KEYS)
        missing = f"{where}: got no {{}}, neither there nor in {_GENERATION}; decoding needs it: add it"
        if not ends:
            raise CheckpointError(missing.format("eos_token_id"))
        if mask is None and family_mask is not None and family_mask < vocab:
            mask = family_mask
        if mask is None:
            error = MissingMaskTokenError(missing.format("mask_token_id"))
            error.vocab_size = vocab
            raise error
        if mask in ends:
            raise CheckpointError(
                f"{where}: got {mask} in eos_token_id, there or in {_GENERATION}, which is the mask token; no answer "
                "can end with it: remove it"
            )
        eos, *stops = dict.fromkeys(ends)
        return cls(mask, eos, pad, bos, delete, split, tuple(stops))


def _token_id(key: str, raw: Json, generation: Json, vocab: int, where: str) -> int | None:
    value = raw.get(key)
    if value is None:
        value, where = generation.get(key), f"{where} ({_GENERATION})"
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return None
    if not _is_token_id(value, vocab):
        raise CheckpointError(
            f"{where}: got {key} = {value!r}; it must be one id in 0..{vocab - 1} (the vocabulary); correct the file"
        )
    return int(value)


def _end_token_ids(raw: Json, vocab: int, where: str) -> list[int]:
    """The ids of `eos_token_id`, which is one or a list: chat models also have one for the end of a turn."""
    value = raw.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if value == [] or not all(_is_token_id(token, vocab) for token in ids):
        raise CheckpointError(
            f"{where}: got eos_token_id = {value!r}; it must be an id or a list of ids in 0..{vocab - 1} (the "
            "vocabulary); correct the file"
        )
    return ids


def _is_token_id(value: object, vocab: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocab
