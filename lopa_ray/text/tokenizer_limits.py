"""What tokenizer files may have: no pattern takes much longer for a longer text, no rule makes a text much longer, and
no id or number of parts is beyond any tokenizer's. The library enforces none of these, and nothing can interrupt it."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lopa_ray.errors import CheckpointError, short_repr

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LARGEST_GROWTH = 256
"""So many times longer may normalising, or decoding, make a text."""

TRIAL_LENGTHS = (32, 256, 2048, 8192)
"""Characters of the texts on which patterns are tried. A pattern that backtracks shows at one of them."""

TRIAL_S = 0.25
"""CPU time that a pattern may take for one of these texts. Usual patterns take some milliseconds for the longest; one
whose time grows with the square of the length takes more, and one whose time doubles with every character meets the
library's own limit at the shortest."""

TRIAL_UNITS = ("a", "A", "1", " ", "\n", "!", "é", "aA", "a ", "1,", "a1 ")
"""What these texts repeat."""

TRIAL_ENDS = ("", "\x00")

TRIAL_TEXTS = ("", "a", "Hello, world 12\n\t", "\u00e9 \u4e2d\U0001f642\u200d", "\U00012345", "\ue000\uffff")
"""What every tokenizer must encode. The last ones are characters that are no tokens."""

LARGEST_VOCABULARY = 2**22
"""Ids and merges of a tokenizer. The library allocates as much memory as its largest id says."""

LARGEST_PART = 2**10
"""Values in a part of tokenizer.json: each of its rules looks at every text."""

LARGEST_TOKEN = 2**12
"""Characters of a token. The library walks through some of them recursively, until the stack is full."""

LARGEST_ADDED, LARGEST_SEARCH = 2**15, 2**26
"""Added tokens, and the cubes of the numbers of characters of all special ones together: a chat is searched for every
piece of each."""

_PARTS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")


def check_tokenizer(file: Path, whole: Mapping[str, Any]) -> None:
    """Raises CheckpointError for a tokenizer.json, or what the library has read from another `file` as one, that the
    library would not survive, or whose patterns, replacements or rules could explode."""
    model = whole.get("model")
    if isinstance(model, Mapping):
        check_vocabulary(file, model.get("vocab"))
        _check_number(file, "merges", model.get("merges"), LARGEST_VOCABULARY)
        _check_lengths(file, (value for value in model.values() if isinstance(value, str)))
    added = whole.get("added_tokens")
    check_added_tokens(file, [one.get("content") for one in _values(added) if isinstance(one, Mapping)])
    for part in _PARTS:
        try:
            values = list(_values(whole.get(part)))
            rules = [value for value in values if isinstance(value, Mapping)]
            growth = math.prod(map(_growth, rules))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise CheckpointError(f"{file}: cannot read its {part} ({error!r}); download it again") from None
        _check_number(file, f"{part} values", values, LARGEST_PART)
        if growth > LARGEST_GROWTH:
            raise CheckpointError(
                f"{file}: got a {part} that can make a text {growth:.3g} times longer; allowed: {LARGEST_GROWTH} "
                "times; correct the file"
            )
        for pattern in (rule["Regex"] for rule in rules if isinstance(rule.get("Regex"), str)):
            _try_pattern(pattern, f"{file}: got the pattern {pattern[:200]!r} in its {part}")


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise RuntimeError where the tokenizers library panics. What it raises then is no Exception, so it would end the
    whole process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(str(error)) from None


def check_encoding(folder: Path, backend: Tokenizer) -> None:
    """Raises CheckpointError for a tokenizer that cannot encode a text, or encodes it to ids that it does not have."""
    for text in TRIAL_TEXTS:
        for add_special_tokens in (False, True):
            try:
                with panics_as_errors():
                    ids = backend.encode(text, add_special_tokens=add_special_tokens).ids
            except Exception as error:  # the library raises plain Exception
                raise CheckpointError(
                    f"{folder}: its tokenizer cannot encode {text!a} ({error}); correct its files"
                ) from None
            if (wrong := next((i for i in ids if backend.id_to_token(i) is None), None)) is not None:
                raise CheckpointError(
                    f"{folder}: its tokenizer encodes {text!a} with id {wrong}, which its vocabulary does not have; "
                    "correct its files"
                )


def check_vocabulary(file: Path, vocabulary: Any) -> None:
    """Raises CheckpointError for a vocabulary (token → id, or a list) with ids that are too large or not unique."""
    _check_number(file, "vocabulary entries", vocabulary, LARGEST_VOCABULARY)
    if not isinstance(vocabulary, Mapping):
        _check_lengths(file, (value for value in _values(vocabulary) if isinstance(value, str)))
        return
    _check_lengths(file, vocabulary)
    seen: dict[int, str] = {}
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < LARGEST_VOCABULARY:
            problem = f"id {short_repr(number)}; allowed: 0..{LARGEST_VOCABULARY - 1}"
        elif (other := seen.setdefault(number, token)) != token:
            problem = f"id {number}, which is that of {short_repr(other)}; each has its own"
        else:
            continue
        raise CheckpointError(f"{file}: got token {short_repr(token)} with {problem}: download it again")


def _check_number(file: Path, of: str, values: Any, most: int) -> None:
    if isinstance(values, Sized) and len(values) > most:
        raise CheckpointError(f"{file}: got {len(values)} {of}; allowed: {most}; correct the file")


def _check_lengths(file: Path, tokens: Iterable[Any]) -> None:
    for token in tokens:
        _check_number(file, "characters of a token", token, LARGEST_TOKEN)


def check_added_tokens(file: Path, contents: Collection[Any], special: Iterable[str] = ()) -> None:
    """Raises CheckpointError for added tokens that are too many, or too long, one or the `special` ones together."""
    _check_number(file, "added tokens", contents, LARGEST_ADDED)
    _check_lengths(file, contents)
    if (search := sum(len(content) ** 3 for content in special)) > LARGEST_SEARCH:
        raise CheckpointError(
            f"{file}: got special tokens with {search} characters cubed; allowed: {LARGEST_SEARCH}; correct the file"
        )


def _values(value: Any) -> Iterator[Any]:
    yield value
    for each in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _values(each)


def _growth(rule: Mapping[str, Any]) -> float:
    """How many times longer one rule can make a text of a character or more."""
    if rule.get("type") == "Replace":
        pattern, content = rule["pattern"], len(rule["content"])
        # A regular expression can match between any two characters.
        return max(1.0, content / len(pattern["String"])) if pattern.get("String") else 1.0 + content
    if rule.get("type") == "Prepend":
        return 1.0 + len(rule["prepend"])
    if rule.get("type") == "Precompiled":
        # sentencepiece: the size of a trie in 4 bytes, the trie, and the replacements with zeros between.
        table = base64.b64decode(rule["precompiled_charsmap"] or "")
        replacements = table[4 + int.from_bytes(table[:4], "little") :]
        return float(max(1, *map(len, replacements.split(b"\x00"))))
    return 1.0


def _try_pattern(pattern: str, got: str) -> None:
    from tokenizers import Regex
    from tokenizers.normalizers import Replace

    try:
        with panics_as_errors():
            replace = Replace(Regex(pattern), "")
            for length in TRIAL_LENGTHS:
                for unit in TRIAL_UNITS:
                    for end in TRIAL_ENDS:
                        began = time.thread_time()
                        replace.normalize_str(unit * (length // len(unit)) + end)
                        if time.thread_time() - began > TRIAL_S:
                            raise RuntimeError(f"more than {TRIAL_S:g} s for {length} characters")
    except Exception as error:  # the library raises plain Exception for a pattern that it cannot read
        raise CheckpointError(
            f"{got}, which takes too long or is not valid ({error}); correct the file"
        ) from None
