"""SpecialTokens: the token ids that a checkpoint names, in `config.json` or in `generation_config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from lopa_ray.errors import CheckpointError

Json: TypeAlias = Mapping[str, Any]

TOKEN_ID_KEYS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")


class MissingMaskTokenError(CheckpointError):
    """Neither the files of a checkpoint's configuration nor its family name a mask token in the vocabulary."""

    vocab_size = 0
    """The size of the checkpoint's vocabulary: a mask token from elsewhere has to be below."""


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids that decoding needs, and those that a checkpoint names besides."""

    mask: int
    eos: int
    pad: int | None
    bos: int | None
    stops: tuple[int, ...]
    """Further ids that end an answer."""

    @classmethod
    def read(cls, raw: Json, generation: Json, family_mask: int | None, vocab: int, where: str) -> Self:
        """From config.json `raw`, and where it has none from `generation`; null is none.

        Where neither has a mask token it is `family_mask`, if the vocabulary reaches so far. Raises `CheckpointError`,
        naming `where` and the key, for one that is missing or not in the vocabulary.
        """
        mask, eos, pad, bos = (_token_id(key, raw, generation, vocab, where) for key in TOKEN_ID_KEYS)
        if eos is None:
            raise CheckpointError(_missing("eos_token_id", where))
        if mask is None and family_mask is not None and family_mask < vocab:
            mask = family_mask
        if mask is None:
            error = MissingMaskTokenError(_missing("mask_token_id", where))
            error.vocab_size = vocab
            raise error
        return cls(mask, eos, pad, bos, _stop_token_ids(generation, eos, vocab, where))


def _missing(key: str, where: str) -> str:
    return f"{where}: got no {key}, neither there nor in generation_config.json; decoding needs it: add it"


def _token_id(key: str, raw: Json, generation: Json, vocab: int, where: str) -> int | None:
    value = raw.get(key)
    if value is None:
        value, where = generation.get(key), f"{where} (generation_config.json)"
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
        raise CheckpointError(
            f"{where}: got {key} = {value!r}; it must be one id in 0..{vocab - 1} (the vocabulary); correct "
            "the file"
        )
    return value


def _stop_token_ids(generation: Json, eos: int | None, vocab: int, where: str) -> tuple[int, ...]:
    """The further ids of an `eos_token_id` that is a list, as chat models have one for the end of a turn."""
    listed = generation.get("eos_token_id")
    if not isinstance(listed, list):
        return ()
    ids = (_token_id("eos_token_id", {"eos_token_id": token}, {}, vocab, where) for token in listed)
    return tuple(token for token in ids if token not in (None, eos))
