"""Lane: a run of rows of the packed forward at consecutive positions of a slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lopa_ray.protocol.plan import Branch, Fill, ScheduledRequest, Segment, Spans
from lopa_ray.protocol.plan_inputs import EncoderInputs, SoftInputs
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens, Drafted, Memory, ShadowSlots, StateBefore

NOT_SCORED = SamplingParams()  # the parameters of lanes without a request


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A branch of a scheduled request, from the first position whose row is computed."""

    slot: int
    start: int
    canvas: npt.NDArray[np.int64]
    """Token ids, int64 [rows], without the tokens of the fill set."""
    segments: tuple[Segment, ...]
    fills: tuple[Fill, ...] = ()
    to_stage: Spans = ()
    """Positions whose K/V are staged. The K/V of positions before `start` are in the slot already."""
    request: ScheduledRequest | None = None
    """The request; None: no positions are scored."""
    index: int = -1
    """The index of the branch. -1: the lane only stages K/V."""
    causal_stop: int = 0
    draft_adapter: bool = False
    beside: int = 0
    """Leads in the list of lanes to that of the state before or of the shadow slots, whose scores this one's are
    compared with, and from shadow slots to the lane that they are for. 0: there is none."""
    hides: int | None = None
    """Shadow slots: a row does not see the position that many after its own. None: no shadow slots."""

    @property
    def input_ids(self) -> npt.NDArray[np.int64]:
        """Token ids with the tokens of the fill set, int64 [rows]."""
        ids = self.canvas.copy()
        for position, token in self.fills:
            if position >= self.start:
                ids[position - self.start] = token
        return ids

    @property
    def stop(self) -> int:
        return self.start + len(self.canvas)

    @property
    def branch(self) -> Branch | None:
        return None if self.request is None or self.index < 0 else self.request.plan.branches[self.index]

    @property
    def memory(self) -> Memory:
        scoring = None if self.branch is None else self.branch.scoring
        return scoring.memory if isinstance(scoring, ChooseTokens) else None

    @property
    def scored(self) -> range:
        return range(0) if self.branch is None else self.branch.scored

    @property
    def scores_decided(self) -> bool:
        return self.request is not None and self.request.plan.scores_decided

    @property
    def encodes(self) -> bool:
        return self.request is None or isinstance(self.request.plan.inputs, EncoderInputs)

    def input_weights(self) -> npt.NDArray[np.float64] | None:
        """The weights of soft inputs, fp64 [rows]; None if the inputs are plain."""
        plan, branch = None if self.request is None else self.request.plan, self.branch
        if plan is None or not isinstance(plan.inputs, SoftInputs):
            return None
        weights = np.array(plan.inputs.weights)[self.start - plan.start :][: len(self.canvas)]
        if branch is not None:
            for (position, _), weight in zip(branch.fills, branch.fill_weights, strict=True):
                if position >= self.start:
                    weights[position - self.start] = weight
        return weights

    def runs(self) -> list[tuple[int, int]]:
        """The number of rows of each segment or causal row, and the end (exclusive) of what they see."""
        causal_end = self.start + self.causal_rows
        runs = [(1, seen) for seen in range(self.start + 1, causal_end + 1)]
        segments = [segment for segment in self.segments if segment[0] > causal_end]
        begins = [causal_end, *(stop for stop, _ in segments)]
        return runs + [(stop - begins[at], seen) for at, (stop, seen) in enumerate(segments)]

    @property
    def causal_rows(self) -> int:
        """How many of the first rows are causal."""
        return max(0, min(self.causal_stop, self.stop) - self.start)

    @property
    def draft_rows(self) -> int:
        """How many of the last rows go through the draft adapter."""
        return self.stop - max(self.start, self.causal_stop) if self.draft_adapter else 0


def lanes_of(scheduled: ScheduledRequest) -> list[Lane]:
    """The lanes of a request's branches on this worker. If all branches stage the same K/V, only the first lane does,
    and where there is none, a lane of the staged spans. States before that are no branch here have lanes as well."""
    plan = scheduled.plan
    branches = [(index, plan.branches[index]) for index in scheduled.branch_indices]
    if plan.stage_shared:
        branches[1:] = [(index, replace(branch, to_stage=())) for index, branch in branches[1:]]
        first = plan.branches[0]
        if first.to_stage and not branches:
            staged = tuple(segment for segment in first.segments if segment[0] <= first.to_stage[-1].stop)
            branches.append((-1, replace(first, segments=staged, fills=())))
    canvas = np.array(plan.canvas, np.int64)
    lanes = []
    for index, branch in branches:
        start = max(scheduled.start, branch.start)
        segments = tuple(segment for segment in branch.segments if segment[0] > start)
        ids = canvas[start - plan.start : segments[-1][0] - plan.start] if segments else canvas[:0]
        where, how = (scheduled.slot, start), (branch.causal_stop, plan.draft_adapter)
        lanes.append(Lane(*where, ids, segments, branch.fills, branch.to_stage, scheduled, index, *how))
    return _with_lanes_beside(lanes)


def _with_lanes_beside(lanes: list[Lane]) -> list[Lane]:
    """The lanes, then those that they are compared with and that are none of them."""
    index: dict[tuple[bytes, tuple[Segment, ...]], int] = {}
    for at, lane in enumerate(lanes[:]):
        match lane.memory:
            case StateBefore(inputs) if inputs is not None:
                ids, segments = lane.input_ids, lane.segments
                for position, token in inputs:
                    ids[position - lane.start] = token
            case Drafted(_, segments):
                assert lane.request is not None
                ids = np.array(lane.request.plan.canvas, np.int64)[: segments[-1][0] - lane.start]
            case ShadowSlots(slots, input_id):
                there, hides = len(lanes), lane.scored.start - slots.start
                ids, stop = np.full(len(slots), input_id), slots.stop
                lanes.append(
                    Lane(lane.slot, slots.start, ids, ((stop, stop),), beside=at - there, hides=hides)
                )
                lanes[at] = replace(lane, beside=there - at)
                continue
            case _:
                continue
        if not index:
            index = {(lane.input_ids.tobytes(), lane.segments): at for at, lane in enumerate(lanes)}
        there = index.setdefault((ids.tobytes(), segments), len(lanes))
        lanes[at] = replace(lane, beside=there - at)
        if there == len(lanes):
            lanes.append(Lane(lane.slot, lane.start, ids, segments))
    return lanes


def params_of_lanes(lanes: Sequence[Lane]) -> tuple[list[SamplingParams], npt.NDArray[np.int64]]:
    """The distinct parameters of lanes, and the index of each lane's, int64 [lanes]."""
    index_of: dict[SamplingParams, int] = {}
    index_of_object: dict[int, int] = {}  # lanes of a request share one object, and hashing is slow
    indices = []
    for lane in lanes:
        params = NOT_SCORED if lane.request is None else lane.request.plan.sampling_params
        index = index_of_object.get(id(params))
        if index is None:
            index = index_of_object[id(params)] = index_of.setdefault(params, len(index_of))
        indices.append(index)
    return list(index_of), np.array(indices, np.int64)
