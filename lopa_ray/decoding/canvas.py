"""Canvas: the ids of a prompt and its answer, as they stand on one branch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from lopa_ray.protocol.plan import Fill


class Canvas:
    """Ids by position; masks are still to be filled."""

    def __init__(self, ids: list[int], prompt_len: int, mask_id: int) -> None:
        self.ids, self.prompt_len, self.mask_id = ids, prompt_len, mask_id

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> Self:
        copied = object.__new__(type(self))  # copy.copy is slower
        copied.__dict__.update(self.__dict__)
        copied.ids = self.ids.copy()
        return copied

    @property
    def generated(self) -> list[int]:
        return self.ids[self.prompt_len :]

    def is_masked(self, position: int) -> bool:
        return self.ids[position] == self.mask_id

    def masked_positions(self, span: range) -> list[int]:
        ids, mask = self.ids, self.mask_id  # looked up once: planning reads these more than anything else
        return [position for position in span if ids[position] == mask]

    def set_tokens(self, fills: Iterable[Fill]) -> None:
        """Fill masks, or replace tokens."""
        for position, token in fills:
            self.ids[position] = token

    def with_fills(self, fills: Iterable[Fill]) -> Self:
        copied = self.copy()
        copied.set_tokens(fills)
        return copied
