"""GivenTokens: the tokens of an answer that are decided before the first step, and the holes between them.

Offsets are counted from the beginning of the answer. An end token (of `DecodeSession.end_token_ids`) in a hole ends the
hole: the positions from there to the next given token are not part of the answer. The positions after the last given
token are the last hole, and end as an answer without given tokens. A given end token ends nothing: it stands at the end
of an answer, or in a suffix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.errors import PromptError, SettingsError

Encode = Callable[[str], Sequence[int]]  # a part's text → its token ids


@dataclass(frozen=True)
class GivenTokens:
    """The given tokens of one request; without any, the answer is one hole."""

    tokens: Mapping[int, int] = field(default_factory=dict)  # offset → token id
    setting: str = "given_parts"  # the setting that gives them

    @classmethod
    def of(cls, settings: GenerationSettings, encode: Encode | None) -> GivenTokens:
        """The given tokens of a request. A `suffix` stands after the `max_new_tokens` of the settings. Raises
        SettingsError for parts that overlap, and for text if there is no `encode`, or if it raises PromptError."""
        setting = settings.giving_setting
        if setting is None or not settings.max_new_tokens:
            return cls()
        tokens: dict[int, int] = {}
        if setting == "suffix":
            ids = encode_given(str(settings.suffix), setting, encode)
            return cls(dict(enumerate(ids, settings.max_new_tokens)), setting)
        end = 0
        for number, part in enumerate(settings.given_parts):
            start = end + (part.hole or 0) if part.at is None else part.at
            if start < end:
                raise SettingsError(
                    f"{setting}: part {number} begins at position {start} of the answer, which belongs to the part "
                    f"before it; allowed: {end} or more, with parts in the order of the answer",
                    setting=setting,
                )
            ids = part.token_ids or encode_given(str(part.text), setting, encode)
            tokens |= enumerate(ids, start)
            end = start + len(ids)
        return cls(tokens, setting)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def end(self) -> int:
        """Offset after the last given token; 0 without any."""
        return max(self.tokens, default=-1) + 1

    @cached_property
    def beginning(self) -> list[int]:
        """The given tokens before the first position that is not given."""
        stop = self.holes[0].start if self.holes else self.end
        return [self.tokens[at] for at in range(stop)]

    @cached_property
    def holes(self) -> tuple[range, ...]:
        """Offsets of the holes before given tokens, ascending."""
        edges = [-1, *sorted(self.tokens)]
        return tuple(range(a + 1, b) for a, b in pairwise(edges) if a + 1 < b)

    def holes_within(self, length: int) -> tuple[range, ...]:
        """Offsets of all holes of an answer of `length` positions, the hole after the last given token included."""
        holes = (range(hole.start, min(hole.stop, length)) for hole in (*self.holes, range(self.end, length)))
        return tuple(hole for hole in holes if hole)

    def canvas(self, length: int, mask_token_id: int) -> list[int]:
        """The first `length` tokens of an answer of which nothing else is decided."""
        return [self.tokens.get(at, mask_token_id) for at in range(length)]

    # Answers

    def ended_positions(self, answer: Sequence[int], end_token_ids: Collection[int]) -> Iterator[int]:
        """Offsets after an end in one of `holes`, which are not part of the answer."""
        for end, stop in self._ends(answer, end_token_ids):
            yield from range(end, min(stop, len(answer)))

    def _ends(self, answer: Sequence[int], end_token_ids: Collection[int]) -> Iterator[tuple[int, int]]:
        """The offset after the end, and the hole's stop, of each hole that has an end."""
        for hole in self.holes:
            length = length_through_end(answer[hole.start : hole.stop], end_token_ids)
            if length is not None:
                yield hole.start + length, hole.stop

    def whole_text(self, answer: Sequence[int], end_token_ids: Collection[int]) -> list[int]:
        """The tokens of an answer, given tokens included, without ends of `holes` and what follows them there."""
        if not self.tokens:
            return list(answer)
        return [answer[at] for at in self._text_offsets(answer, end_token_ids)]

    def returned_text(self, answer: Sequence[int], end_token_ids: Collection[int]) -> Sequence[int]:
        """The part of an answer that is returned; of an answer with a suffix the hole alone."""
        if self.setting == "suffix":
            return answer[: self.holes[0].stop]
        return self.whole_text(answer, end_token_ids) if self.tokens else answer

    def returned_offsets(self, answer: Sequence[int], end_token_ids: Collection[int]) -> Sequence[int]:
        """The offsets of `returned_text`."""
        if self.tokens and self.setting != "suffix":
            return self._text_offsets(answer, end_token_ids)
        return range(len(self.returned_text(answer, end_token_ids)))

    def num_generated(
        self, answer: Sequence[int], end_token_ids: Collection[int], text_tokens: int | None = None
    ) -> int:
        """How many tokens of an answer were generated: of each hole up to and including its first end. Counts up to the
        last one of the first `text_tokens` of `returned_text`."""
        stop = len(answer)
        if text_tokens is not None:
            hides = self.setting == "suffix" or not self.tokens
            offsets = (range(stop) if hides else self._text_offsets(answer, end_token_ids))[:text_tokens]
            stop = offsets[-1] + 1 if offsets else 0
        parts = (answer[hole.start : hole.stop] for hole in self.holes_within(stop))
        return sum(length_through_end(ids, end_token_ids) or len(ids) for ids in parts)

    def _text_offsets(self, answer: Sequence[int], end_token_ids: Collection[int]) -> list[int]:
        left_out = {at for end, stop in self._ends(answer, end_token_ids) for at in range(end - 1, stop)}
        return [at for at in range(len(answer)) if at not in left_out]


def encode_given(text: str, setting: str, encode: Encode | None) -> Sequence[int]:
    """The token ids of text that `setting` gives. Raises SettingsError as `GivenTokens.of` does."""
    if encode is None:
        raise SettingsError(
            f"{setting}: got text, but no tokenizer encodes it; give token_ids, or make sessions with "
            "Engine.create_session",
            setting=setting,
        )
    try:
        ids = encode(text)
    except PromptError as error:
        raise SettingsError(f"{setting}: {error}", setting=setting) from None
    if not ids:
        raise SettingsError(f"{setting}: got text that has no tokens; leave it out", setting=setting)
    return ids


def length_through_end(ids: Sequence[int], end_token_ids: Collection[int]) -> int | None:
    """Tokens up to and including the first of `end_token_ids` (see `DecodeSession`); None without one."""
    if frozenset(end_token_ids).isdisjoint(ids):
        return None
    return next(at for at, token in enumerate(ids, 1) if token in end_token_ids)


def final_part(canvas: Sequence[int], editable: range, prompt_len: int) -> Sequence[int]:
    """The beginning of a canvas that is before the positions that later steps may edit; all of it if none are."""
    return canvas[: editable.start - prompt_len] if editable else canvas
