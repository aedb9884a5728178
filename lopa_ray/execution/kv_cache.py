"""KVCache: preallocated slots, one per request in flight.

Contract:
- `committed[slot]` lists the spans whose K/V all later forwards may read. Only commits (`write_payload`,
  `write_staged`) add spans, and only `retain` and `reset` remove them.
- Rows that are not committed are scratch memory, where `LaneAttention` and `MaskedAttention` write a lane's K/V.
- A commit is applied once per request and step, however often a step is repeated.
- Cached K/V depend on the content of the window when they were computed. They cannot be recomputed from the decided
  tokens alone.
- On an idle group the `checksum` of a slot is the same on all workers.
- `boundary[slot]` is the last hidden row [D] of the first committed span. With shifted logits it decides the position
  after that span, in every later step with its own parameters. For models that denoise canvases of A positions it is
  [D + A * D], with the self-conditioning of the canvas from the step of the last commit.

Shape suffixes: S slots, L layers, K KV heads, C rows of a slot, E head dim, D hidden size, P positions of spans.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.errors import CapacityError, ProtocolError
from lopa_ray.execution.staging import StagedCommit, StagedLane, StagedStep
from lopa_ray.kernels.commit_rows import commit_rows
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.protocol.plan import Spans
from lopa_ray.protocol.slot_checksum import SlotChecksum

ALIGN_ROWS = 32
"""The rows of a slot are a multiple of this number, so keys and values of every slot and head begin at a multiple of
64 bytes. The rounding of CPU kernels depends on alignment, and results must not depend on the slot."""

_SIGNS_OF_LACK = (
    "DefaultCPUAllocator: ",
    "Storage size calculation overflowed",
    "Overflow when unpacking long",
)
"""Parts of torch's messages: the CPU has no memory for a tensor, or its size has no number."""


@dataclass(frozen=True, slots=True)
class SlotState:
    """The state of a slot, from which another worker can continue."""

    slot: int
    request_id: int
    spans: Spans
    last_commit: int
    payload_bytes: npt.NDArray[np.uint8]
    """K/V at `spans` and the boundary row as raw bytes, uint8 [bytes]."""


class KVCache:
    """Keys and values of all layers for `num_slots` sequences of up to `capacity` positions each."""

    def __init__(
        self, config: ModelConfig, num_slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises CapacityError if the slots do not fit in memory."""
        layers, two, heads, dim = config.kv_shape
        self.capacity = capacity
        rows = -(-capacity // ALIGN_ROWS) * ALIGN_ROWS
        shape = (num_slots, layers, two, heads, rows, dim)
        try:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        except (RuntimeError, TypeError) as error:
            said = any(sign in str(error) for sign in _SIGNS_OF_LACK)  # on CPU only the message tells
            if not said and not isinstance(error, torch.OutOfMemoryError):
                raise
            gib = math.prod(shape) * dtype.itemsize / 2**30
            raise CapacityError(
                f"a KV cache of {num_slots} slots with {capacity} positions ({gib:.1f} GiB) does not fit; "
                f"lower max_num_seqs or max_model_len ({str(error).splitlines()[0]})"
            ) from None
        width = config.hidden_size * (1 + config.canvas_length)
        self.boundary = torch.zeros(num_slots, width, dtype=dtype, device=device)
        self._hidden_size = config.hidden_size
        self.request_ids: list[int | None] = [None] * num_slots
        self.committed: list[Spans] = [()] * num_slots
        self.last_commit = [0] * num_slots
        """The step of the last commit that was carried out in each slot."""

    def release(self) -> None:
        """Free the memory of K/V, until `allocate`. Slots have to be empty."""
        self.data.untyped_storage().resize_(0)

    @property
    def is_released(self) -> bool:
        return not self.data.untyped_storage().nbytes()

    def allocate(self) -> None:
        """Raises RuntimeError without the memory."""
        self.data.untyped_storage().resize_(self.data.numel() * self.data.itemsize)
        self.data.zero_()

    def reset(self, slot: int, request_id: int | None) -> None:
        self.request_ids[slot] = request_id
        self.committed[slot] = ()
        self.last_commit[slot] = 0

    def retain(self, slot: int, spans: Spans) -> None:
        """Keep only `spans` of the committed spans. Raises ProtocolError if one of them is not committed."""
        for span in spans:
            if not any(have.start <= span.start and span.stop <= have.stop for have in self.committed[slot]):
                raise ProtocolError(
                    f"slot {slot}: positions {span.start} to {span.stop} are not cached; cached: {self.committed[slot]}"
                )
        self.committed[slot] = spans

    @property
    def last_rows(self) -> Tensor:
        """The hidden row of each slot's boundary, [S, D] in the cache's dtype."""
        return self.boundary[:, : self._hidden_size]

    def layer_views(self, slot: int, layer: int) -> tuple[Tensor, Tensor]:
        """Writable views of a slot's keys and values in one layer, [K, C, E] each in the cache's dtype."""
        return self.data[slot, layer, 0], self.data[slot, layer, 1]

    def clear_scratch(self, slot: int, span: range) -> None:
        """Zero the positions of `span` that are not committed."""
        begin = span.start
        for committed in sorted(self.committed[slot], key=lambda committed: committed.start):
            self.data[slot, :, :, :, begin : min(committed.start, span.stop)] = 0
            begin = max(begin, committed.stop)
        self.data[slot, :, :, :, begin : span.stop] = 0

    def empty_payload(self, positions: int, commits: int = 1) -> Tensor:
        """An uninitialised flat payload in the cache's dtype: K/V [L, 2, P, K, E], then boundary rows [Q, D]."""
        per_position = self.data[0, :, :, :, 0].numel()
        size = per_position * positions + self.boundary.shape[1] * commits
        return torch.empty(size, dtype=self.data.dtype, device=self.data.device)

    def split_payload(self, payload: Tensor, commits: int = 1) -> StagedStep:
        """Views into a payload, in its dtype, as a step stages them: K/V [L, 2, P, K, E] and boundary rows [Q, D]."""
        _, layers, two, heads, _, dim = self.data.shape
        width = self.boundary.shape[1]
        kv, boundaries = payload.tensor_split([payload.numel() - commits * width])
        positions = kv.numel() // (layers * two * heads * dim)
        return StagedStep(kv.view(layers, two, positions, heads, dim), boundaries.view(commits, width))

    def write_payload(self, slot: int, spans: Spans, payload: Tensor) -> None:
        """See `copy_payload`; the spans are then committed."""
        self.copy_payload(slot, spans, payload)
        self.mark_committed(slot, spans)

    def copy_payload(self, slot: int, spans: Spans, payload: Tensor) -> None:
        """Write the payload of one commit, flat [values] in the cache's dtype: K/V at `spans`, and a boundary row."""
        step, at = self.split_payload(payload), 0
        for span in spans:
            rows = step.kv[:, :, at : at + len(span)]
            self.data[slot, :, :, :, span.start : span.stop] = rows.transpose(2, 3)
            at += len(span)
        self.boundary[slot] = step.boundaries[0]

    def write_staged(self, commits: Sequence[StagedCommit], rows: Tensor, boundaries: Tensor) -> None:
        """Commit staged K/V, with one copy for all that the same step has staged. In order of the commits: `rows` int64
        [N, 3] is the table of `commit_rows`, `boundaries` int64 [Q, 2] has staged boundary rows and slots."""
        row, boundary = 0, 0
        for step, of_step in groupby(commits, lambda commit: commit.staged.step):
            together = list(of_step)
            next_row = row + sum(len(commit.staged.rows) for commit in together)
            next_boundary = boundary + len(together)
            if next_row > row:
                commit_rows(self.data, step.kv, rows[row:next_row])
            staged, slots = boundaries[boundary:next_boundary].unbind(1)
            self.boundary.index_copy_(0, slots, step.boundaries.index_select(0, staged))
            row, boundary = next_row, next_boundary
        for commit in commits:
            self.mark_committed(commit.slot, commit.spans)

    def mark_committed(self, slot: int, spans: Spans) -> None:
        self.committed[slot] = merge_spans(self.committed[slot] + spans)

    def read_payload(self, slot: int, spans: Spans) -> Tensor:
        """See `gather_payload`, with nothing staged."""
        return self.gather_payload([(slot, spans, None)])

    def gather_payload(self, commits: Sequence[tuple[int, Spans, StagedLane | None]]) -> Tensor:
        """The K/V and boundary rows of commits, as one contiguous payload [values] in the cache's dtype. Each has a
        slot, spans, and the lane that staged its K/V; positions before the lane, or all, are read from the slot."""
        positions = sum(len(span) for _, spans, _ in commits for span in spans)
        payload = self.empty_payload(positions, len(commits))
        step = self.split_payload(payload, len(commits))
        rows = [part for commit in commits for part in self._rows(*commit)]
        if rows:
            torch.cat(rows, 1, out=_by_position(step.kv))
        boundaries = [
            self.boundary[slot] if lane is None else lane.step.boundaries[lane.boundary_row]
            for slot, _, lane in commits
        ]
        torch.stack(boundaries, out=step.boundaries)
        return payload

    def _rows(self, slot: int, spans: Spans, lane: StagedLane | None) -> Iterator[Tensor]:
        """Keys and values at `spans` in order, in parts [L * 2, positions, K * E]; see `gather_payload`."""
        row = 0 if lane is None else lane.rows.start
        for span in spans:
            computed_from = span.stop if lane is None else min(max(lane.start, span.start), span.stop)
            if span.start < computed_from:
                in_slot = self.data[slot, :, :, :, span.start : computed_from]
                yield _by_position(in_slot.transpose(2, 3))
            if lane is not None and computed_from < span.stop:
                end = row + span.stop - computed_from
                yield _by_position(lane.step.kv)[:, row:end]
                row = end

    def export_slot(self, slot: int) -> SlotState:
        """Raises ProtocolError if the slot has no request."""
        request_id, spans = self.request_ids[slot], self.committed[slot]
        if request_id is None:
            raise ProtocolError(f"slot {slot} has no request; only slots of requests in flight are exported")
        payload = payload_to_bytes(self.read_payload(slot, spans))
        return SlotState(slot, request_id, spans, self.last_commit[slot], payload)

    def import_slot(self, state: SlotState) -> None:
        self.reset(state.slot, state.request_id)
        payload = torch.from_numpy(state.payload_bytes.copy()).to(self.data.device).view(self.data.dtype)
        self.write_payload(state.slot, state.spans, payload)
        self.last_commit[state.slot] = state.last_commit

    def checksum(self, slot: int) -> SlotChecksum:
        spans = self.committed[slot]
        if not spans:
            return SlotChecksum(self.request_ids[slot], spans, "", 0.0)
        payload = self.read_payload(slot, spans)
        digest = hashlib.sha256(payload_to_bytes(payload).tobytes()).hexdigest()
        return SlotChecksum(self.request_ids[slot], spans, digest, payload.double().abs().sum().item())


def _by_position(kv: Tensor) -> Tensor:
    """Keys and values [L, 2, P, K, E] → [L * 2, P, K * E]; a view if they are contiguous."""
    layers, two, positions, heads, dim = kv.shape
    return kv.reshape(layers * two, positions, heads * dim)


def payload_to_bytes(payload: Tensor) -> npt.NDArray[np.uint8]:
    """uint8 [bytes]"""
    raw: npt.NDArray[np.uint8] = payload.view(torch.uint8).cpu().numpy()
    return raw


def merge_spans(spans: Spans) -> Spans:
    """The same positions as sorted, disjoint, non-adjacent spans."""
    merged: list[range] = []
    for span in sorted(spans, key=lambda s: s.start):
        if merged and span.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, span.stop))
        else:
            merged.append(span)
    return tuple(merged)
