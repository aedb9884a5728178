"""A stand-in for a model with a K/V cache: what a row says follows from all that it sees, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.token_bitmasks import unpack_bitmask
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.scoring import Credits, Drafted
from lopa_ray.protocol.step_report import BranchReport
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import VOCABULARY, fake_memory, scored_positions

Fingerprint = bytes
"""Stands for a vector: two are equal if all that they are computed from is equal."""

Rows = dict[int, tuple[Fingerprint, ...]]
"""Position → keys and values of each layer, and last the hidden row."""

LAYERS = 2


@dataclass
class ContextModel:
    """One request's model and cache.

    Like a transformer of two layers: a position's first keys and values follow from its token, each next layer's from
    those of the layer before at all positions that it attends to. Cached ones are taken as they were computed.
    """

    seed: int = 0
    stability: float = 0.9
    """Share of positions whose token depends on the position alone, so that drafts are often right."""
    eos_probability: float = 0.0
    vocabulary: Vocabulary = VOCABULARY
    _cache: Rows = field(default_factory=dict, init=False)
    _boundary: tuple[Fingerprint, ...] = field(default=(), init=False)
    """The last committed row before what is not cached: under shifted logits it decides the next position."""
    _staged: dict[int, Rows] = field(default_factory=dict, init=False)
    """Branch → what it has staged in the last step."""

    def reports(self, plan: Plan) -> list[BranchReport]:
        """Carry out the plan's commit and evaluate its branches."""
        if plan.commit is not None:
            staged = self._staged[plan.commit.branch]
            self._cache = self._cache | {p: staged[p] for span in plan.commit.spans for p in span}
            self._boundary = staged[plan.commit.spans[0].stop - 1]
        self._cache = {p: self._cache[p] for span in plan.cached for p in span}
        rows = [self._rows(plan, branch) for branch in plan.branches]
        self._staged = {
            index: {p: of_branch[p] for span in branch.to_stage for p in span}
            for index, (branch, of_branch) in enumerate(zip(plan.branches, rows, strict=True))
        }
        return [self._report(plan, index, of_branch) for index, of_branch in enumerate(rows)]

    def _rows(self, plan: Plan, branch: Branch) -> Rows:
        ids = plan.input_ids(branch)
        rows: Rows = {
            p: (_digest(self.seed, p, token),)
            for p, token in enumerate(ids[: branch.stop - plan.start], plan.start)
            if p >= branch.start
        }
        for layer in range(LAYERS):
            first, made = max(plan.start, branch.start), {}
            for stop, kv_stop in branch.segments:
                seen = [(rows[p] if p in rows else self._cache[p])[layer] for p in range(kv_stop)]
                for position in range(first, stop):
                    made[position] = _digest(rows[position][0], *seen)
                first = stop
            rows = {position: (*row, made[position]) for position, row in rows.items()}
        return rows

    def _report(self, plan: Plan, index: int, rows: Rows) -> BranchReport:
        branch, mask = plan.branches[index], self.vocabulary.mask_token_id
        verifies = isinstance(getattr(branch.scoring, "memory", None), Drafted)
        positions = scored_positions(plan, branch, mask, decided=verifies)
        scores = [self._score(plan, branch, p, rows, _decided(plan, branch, p, mask)) for p in positions]
        tokens, probabilities = zip(*scores, strict=True) if scores else ((), ())
        certain = np.array(probabilities, np.float64)
        ranked = -3 * (1 - certain) if plan.sampling_params.ranking == "neg_entropy" else certain
        top = plan.sampling_params.top_logprobs
        return BranchReport(
            step=plan.step,
            branch=index,
            positions=np.array(positions, np.int32),
            tokens=np.array(tokens, np.int32),
            probabilities=certain,
            logprobs=np.log(np.maximum(certain, 1e-9)).astype(np.float32),
            scores=ranked,
            top_tokens=np.tile(np.arange(top, dtype=np.int32), (len(positions), 1)),
            top_logprobs=np.tile(-np.arange(1, top + 1, dtype=np.float32), (len(positions), 1)),
            draws=np.stack([np.log(certain) / 2, 1 - certain], axis=1)[:, : 2 * plan.sampling_params.draws],
            memory=fake_memory(branch, np.array(tokens, np.int32), self._moved(branch, positions, rows)),
        )

    def _moved(self, branch: Branch, positions: list[int], rows: Rows) -> npt.NDArray[np.float64]:
        """A number in [0, 1) for each position, which follows from the inputs now and before; often near 0."""
        before = getattr(branch.scoring, "memory", None)
        units = [
            self._unit("moved", p, before, rows.get(p - self.vocabulary.shifted, self._boundary)[-1])
            for p in positions
        ]
        return np.array(units, np.float64) ** 3

    def _score(
        self, plan: Plan, branch: Branch, position: int, rows: Rows, decided: int
    ) -> tuple[int, float]:
        """Token and probability at a masked position."""
        deciding = position - self.vocabulary.shifted
        row = rows.get(deciding, self._boundary)[-1]
        own = self._unit("position", position)
        bitmask = plan.token_bitmask(branch, position)
        context = (row, bitmask, _logit_changes(plan, branch), *_of_scoring(branch))
        is_stable = own < self.stability
        draw = self._unit("token", position) if is_stable else self._unit("token", position, context)
        is_end = self._unit("end", position) < self.eos_probability
        mask, eos = self.vocabulary.mask_token_id, self.vocabulary.eos_token_id
        is_early = position < plan.sampling_params.no_eos_before
        token = eos if is_end and not is_early else int(draw * min(mask, eos))
        if bitmask is not None:
            allowed = np.flatnonzero(unpack_bitmask(bitmask, self.vocabulary.size))
            if token not in allowed:
                token = int(allowed[int(draw * len(allowed))])
        noise = 0.1 * self._unit("probability", position, context)
        rises = 0.02 * decided * self._unit("slope", position)
        return token, round(min(0.999, 0.3 + 0.6 * self._unit("level", position) + rises + noise), 3)

    def _unit(self, *key: object) -> float:
        """A number in [0, 1) that depends on the key and the seed alone."""
        return int.from_bytes(_digest(self.seed, key), "little") / 2**64


def _of_scoring(branch: Branch) -> tuple[object, ...]:
    """What tokens and probabilities depend on: draws, and credits."""
    memory = getattr(branch.scoring, "memory", None)
    return getattr(branch.scoring, "draw_key", 0), memory if isinstance(memory, Credits) else None


def _logit_changes(plan: Plan, branch: Branch) -> object:
    """What the logits of a branch change by: its fills are counted with the tokens of the canvas, in no order."""
    changes = plan.logit_changes
    if changes is None or not changes.has_penalties:
        return changes
    filled = [token for _, token in branch.fills if token not in changes.uncounted_ids]
    return replace(changes, answer=b""), sorted([*changes.answer_ids.tolist(), *filled])


def _decided(plan: Plan, branch: Branch, position: int, mask: int) -> int:
    """How many of the positions that a row sees hold a token."""
    kv_stop = next(kv_stop for stop, kv_stop in branch.segments if position < stop)
    return kv_stop - plan.input_ids(branch)[: kv_stop - plan.start].count(mask)


def _digest(*parts: object) -> Fingerprint:
    return blake2b(repr(parts).encode(), digest_size=8).digest()
