"""PromptAttention: what the positions of a prompt see, as a decoder's model was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lopa_ray.protocol.plan import Segment


@dataclass(frozen=True, slots=True)
class PromptAttention:
    """The part that each position sees of a prompt and of a block of the answer after it.

    - `full`: everything.
    - `one_block`: a prompt's position sees the prompt, the answer's everything.
    - `blocks`: blocks of `block_size` are counted from position 0, and see themselves and earlier blocks.
    - `causal`: a prompt's position sees nothing after itself, the answer's everything.
    """

    kind: Literal["full", "one_block", "blocks", "causal"] = "full"
    block_size: int = 1  # positions per block, for `blocks`

    @property
    def is_exact(self) -> bool:
        """Whether K/V of a prompt's beginning do not depend on what follows it, up to `stored_end`."""
        return self.kind in ("blocks", "causal")

    def stored_end(self, length: int) -> int:
        """How many of the first `length` positions of a prompt can be computed without what follows them: whole blocks.
        Under `full` and `one_block` these are all, but the model was trained to let them see what follows."""
        return length - length % self.block_size if self.kind == "blocks" else length

    def segments(self, start: int, prompt_stop: int, stop: int) -> tuple[Segment, ...]:
        """The segments of rows from `start` to `stop`, which from `prompt_stop` on are a block of the answer."""
        if self.kind == "blocks":
            first = start - start % self.block_size + self.block_size
            ends = [*range(first, stop, self.block_size), stop]
        elif self.kind == "causal":
            ends = [*range(start + 1, prompt_stop + 1), stop]
        else:
            ends = [*([prompt_stop] if self.kind == "one_block" else []), stop]
        return tuple((end, end) for end in dict.fromkeys(ends) if end > start)
