"""A tokenizer is tried in a process of its own before texts of users reach it: patterns may backtrack, rules may make
texts longer, and the library enforces no limit, and cannot be interrupted."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError

TRIAL_S, TEXT_S = 10.0, 0.25
"""Processor time for all trial texts, and for one of them. Usual tokenizers take some milliseconds for the longest; a
pattern whose time grows with the square of the length takes more."""

TRIAL_UNITS = ("a", "A", "1", " ", "\n", "!", "é", "aA", "a ", "1,", "a1 ")
TRIAL_TEXTS = (
    *("", "a", "Hello, world 12\n\t", "\u00e9 \u4e2d\U0001f642\u200d", "\U00012345", "\ue000\uffff"),
    *(unit * (length // len(unit)) + "\x00" for length in (32, 8192) for unit in TRIAL_UNITS),
)
"""Characters that are not tokens are among them, and repetitions whose end makes patterns backtrack."""

LARGEST_VOCABULARY = 2**22
"""Ids of a tokenizer. Memory is allocated for all ids up to the largest."""

LARGEST_TOKEN, LARGEST_ADDED, LARGEST_SEARCH = 2**12, 2**15, 2**26
"""Characters of an added token, added tokens, and the cubes of the numbers of characters of all special tokens
together: a chat is searched for every piece of each."""

_tried: set[bytes] = set()  # digests of tokenizers that passed in this process


class _Trial:
    def encode_trial_texts(self, whole: str) -> None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(whole)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for text in TRIAL_TEXTS:
            began = time.thread_time()
            ids = tokenizer.encode(text).ids
            tokenizer.decode(ids)
            if time.thread_time() - began > TEXT_S:
                raise CheckpointError(f"it takes more than {TEXT_S:g} s for {len(text)} characters")
            for token in {*ids, *tokenizer.encode(text, add_special_tokens=False).ids}:
                if tokenizer.id_to_token(token) is None:
                    raise CheckpointError(
                        f"it encodes {text[:32]!a} with id {token}, which its vocabulary does not have"
                    )


def try_tokenizer(file: Path, whole: str) -> None:
    """Raises CheckpointError, which names `file`, if a tokenizer cannot encode some texts within limits. `whole` is its
    tokenizer.json, or what the library writes as one."""
    digest = sha256(whole.encode(errors="surrogatepass")).digest()
    if digest in _tried:
        return
    process = LimitedProcess(_Trial())
    try:
        process.call("encode_trial_texts", whole, TRIAL_S)
    except (CheckpointError, ProcessLimitError, RuntimeError) as error:
        raise CheckpointError(
            f"{file}: its tokenizer cannot encode short texts ({error}); correct its files"
        ) from None
    finally:
        process.close()
    _tried.add(digest)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise RuntimeError where the tokenizers library panics. What it raises then is not an Exception, so it would end
    the whole process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None


def check_vocabulary(file: Path, vocabulary: Any) -> None:
    """Raises CheckpointError for a vocabulary of tokens with ids that are too large or not unique."""
    ids = list(vocabulary.values()) if isinstance(vocabulary, Mapping) else []
    if not all(type(i) is int and 0 <= i < LARGEST_VOCABULARY for i in ids) or len(set(ids)) < len(ids):
        raise CheckpointError(
            f"{file}: got a vocabulary with wrong ids; allowed: 0 to {LARGEST_VOCABULARY - 1}, each once: download it "
            "again"
        )


def check_added_tokens(file: Path, contents: Collection[str], special: Iterable[str] = ()) -> None:
    """Raises CheckpointError for added tokens that are too many or too long, each or the `special` tokens together."""
    for got, most, of in (
        (len(contents), LARGEST_ADDED, "added tokens"),
        (max(map(len, contents), default=0), LARGEST_TOKEN, "characters of a token"),
        (sum(len(content) ** 3 for content in special), LARGEST_SEARCH, "cubed characters of special tokens"),
    ):
        if got > most:
            raise CheckpointError(f"{file}: got {got} {of}; allowed: {most}; correct the file")
