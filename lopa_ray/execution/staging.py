"""StagingBuffer: K/V that the branches of a step have ready for a commit, which the next step may order."""

from __future__ import annotations

from torch import Tensor


class StagingBuffer:
    """Payloads of a `KVCache` by slot and branch; of each slot, those of one step."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        """Slot → the step that staged what is there."""
        self._payloads: dict[int, dict[int, Tensor]] = {}
        """Slot → branch → payload."""

    def add(self, slot: int, step: int, branch: int, payload: Tensor) -> None:
        """Set aside what a branch has computed; what an earlier step staged in that slot goes."""
        self.retain_step(slot, step)
        self._steps[slot] = step
        self._payloads.setdefault(slot, {})[branch] = payload

    def get(self, slot: int, step: int, branch: int | None) -> Tensor | None:
        """What a branch staged in that step, or with None any branch, where all have the same."""
        if self._steps.get(slot) != step:
            return None
        payloads = self._payloads[slot]
        return next(iter(payloads.values())) if branch is None else payloads.get(branch)

    def retain_step(self, slot: int, step: int | None) -> None:
        """Drop what was staged in the slot by any other step."""
        if self._steps.get(slot) != step:
            self.clear(slot)

    def clear(self, slot: int) -> None:
        """Drop what was staged in the slot."""
        self._steps.pop(slot, None)
        self._payloads.pop(slot, None)
