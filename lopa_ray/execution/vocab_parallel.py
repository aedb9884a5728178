"""What scoring does along the vocabulary, over whole rows of logits or over rows that shards have a part of each.

Shards tell each other a few numbers per row: how large its largest logit is and what the exponentials add up to,
which token is best and how good it is. Whole rows move only where a nucleus may hold very many tokens. Equal values go
to the lowest id, on any number of shards.

Shape suffixes: N rows, V vocabulary (of a shard: its part of it), K best tokens, S shards.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.model.tensor_parallel import TensorParallelGroup, shard_range

CANDIDATES = 64
"""Tokens of each shard among which a nucleus is looked for first."""


class VocabularyAxis:
    """Rows that are here as a whole: torch's own operations, over x [N, V]."""

    def __init__(self, size: int) -> None:
        self.size = size
        """Of the whole vocabulary."""
        self.own = range(size)
        """The ids of the columns that are here."""

    def softmax(self, x: Tensor) -> Tensor:
        """Probabilities [N, V] of the columns here."""
        return x.softmax(-1)

    def logsumexp(self, x: Tensor) -> Tensor:
        """[N, 1]."""
        return x.logsumexp(-1, keepdim=True)

    def amax(self, x: Tensor) -> Tensor:
        """[N, 1]."""
        return x.amax(-1, keepdim=True)

    def sum(self, x: Tensor) -> Tensor:
        """[N]."""
        return x.sum(-1)

    def all(self, x: Tensor) -> Tensor:
        """Of bool x: bool [N]."""
        return x.all(-1)

    def argmax(self, x: Tensor) -> Tensor:
        """The id of the largest, int64 [N]."""
        return x.argmax(-1)

    def pick(self, x: Tensor, ids: Tensor) -> Tensor:
        """The values [N, 1] at one id per row."""
        return x.gather(1, ids[:, None])

    def largest(self, x: Tensor, k: int) -> Tensor:
        """The largest values [N, K], in descending order."""
        return x.topk(k, dim=-1).values

    def top(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The largest values [N, K] in descending order, and their ids."""
        return _top(x, k)

    def draw(self, weights: Tensor, uniform: Tensor) -> Tensor:
        """Inverse-CDF draw: weights ≥ 0 (not all 0), uniform [N] in [0, 1) → ids int64 [N].

        Rounding can put a draw beyond the last token or, with a parallel cumulative sum, on one
        without weight: then it is the token with the most weight.
        """
        cumulative = weights.cumsum(-1)
        target = uniform[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True).clamp_max(weights.shape[-1] - 1)
        heaviest = weights.argmax(-1, keepdim=True)
        return torch.where(weights.gather(1, drawn) > 0, drawn, heaviest)[:, 0]

    def outside_nucleus(self, logits: Tensor, top_p: float) -> Tensor:
        """Bool [N, V]: not among the most likely tokens up to the one that brings their mass above `top_p`."""
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        before = ordered.softmax(-1).cumsum(-1)
        outside = torch.zeros_like(before, dtype=torch.bool)
        outside[:, 1:] = before[:, :-1] > top_p
        return torch.zeros_like(outside).scatter(1, index, outside)

    def whole(self, x: Tensor) -> Tensor:
        """All columns. For research and tests: scoring never asks for it."""
        return x


class VocabularyShard(VocabularyAxis):
    """Rows of which every shard has its columns. All shards make the same calls, in the same order, and get the same
    results, which are of whole rows; ids are those of the whole vocabulary.

    A nucleus is looked for among the best `CANDIDATES` of each shard; rows where it may reach beyond these are
    gathered as a whole.
    """

    def __init__(self, size: int, parallel: TensorParallelGroup) -> None:
        super().__init__(size)
        self.own = shard_range(size, parallel.rank, parallel.size)
        self._parts = [shard_range(size, rank, parallel.size) for rank in range(parallel.size)]
        self._widest = len(self._parts[0])
        self._parallel = parallel

    def softmax(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        largest, mass = self._normaliser(x)
        return (x - largest).exp() / mass

    def logsumexp(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        largest, mass = self._normaliser(x)
        return largest + mass.log()

    def amax(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        return self._parallel.all_gather(x.amax(-1, keepdim=True)).amax(0)

    def sum(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        return self._parallel.all_reduce(x.sum(-1))

    def all(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        return self._parallel.all_reduce((~x).sum(-1)) == 0

    def argmax(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        best = x.argmax(-1, keepdim=True)
        values, ids = self._gather_with_ids(x.gather(1, best), best + self.own.start)
        return ids.gather(0, values.argmax(0)[None])[0, :, 0]

    def pick(self, x: Tensor, ids: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        here = ids[:, None] - self.own.start
        mine = (here >= 0) & (here < len(self.own))
        values = x.gather(1, here.clamp(0, len(self.own) - 1))
        return self._parallel.all_reduce(torch.where(mine, values, torch.zeros_like(values)))

    def largest(self, x: Tensor, k: int) -> Tensor:
        """See `VocabularyAxis`."""
        here = min(k, len(self.own))
        values = F.pad(x.topk(here, dim=-1).values, (0, k - here), value=-torch.inf)
        return self._parallel.all_gather(values).transpose(0, 1).flatten(1).topk(k, dim=-1).values

    def top(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """See `VocabularyAxis`."""
        if k == 0:
            return _top(x, 0)
        values, ids, _ = self._candidates(x, k)
        return values[:, :k], ids[:, :k]

    def draw(self, weights: Tensor, uniform: Tensor) -> Tensor:
        """See `VocabularyAxis`. The shard on whose part of the cumulative sum the draw falls says the token."""
        cumulative = weights.cumsum(-1)
        masses = self._parallel.all_gather(cumulative[:, -1])
        reached = F.pad(masses.cumsum(0), (0, 0, 1, 0))
        target = uniform * reached[-1] - reached[self._parallel.rank]
        at = torch.searchsorted(cumulative, target[:, None], right=True)
        drawn = at.clamp_max(len(self.own) - 1)
        here = (target[:, None] >= 0) & (at == drawn) & (weights.gather(1, drawn) > 0)
        said = self._parallel.all_gather(torch.where(here, drawn + self.own.start, -1)[:, 0])
        heaviest = self.argmax(weights)
        found = said.gather(0, (said >= 0).to(torch.uint8).argmax(0)[None])[0]
        return torch.where(found >= 0, found, heaviest)

    def outside_nucleus(self, logits: Tensor, top_p: float) -> Tensor:
        """See `VocabularyAxis`."""
        largest, mass = self._normaliser(logits)
        value, last, certain = self._crossing(logits, largest, mass, top_p, CANDIDATES)
        if not bool(certain.all()):
            rest = ~certain
            value[rest], last[rest], _ = self._crossing(
                logits[rest], largest[rest], mass[rest], top_p, self._widest
            )
        ids = torch.arange(self.own.start, self.own.stop, device=logits.device)
        return (logits < value) | ((logits == value) & (ids > last))

    def whole(self, x: Tensor) -> Tensor:
        """See `VocabularyAxis`."""
        gathered = self._parallel.all_gather(F.pad(x, (0, self._widest - len(self.own))))
        return torch.cat([each[:, : len(own)] for each, own in zip(gathered, self._parts, strict=True)], -1)

    def _normaliser(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of each row, and what the exponentials of the differences to it add up to, [N, 1] each."""
        # A shard may have nothing but -inf, which has no difference to itself.
        largest = x.amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
        mass = (x - largest).exp().sum(-1, keepdim=True)
        each = self._parallel.all_gather(torch.cat((largest, mass), -1))
        best = each[:, :, :1].amax(0)
        return best, reduce(torch.add, each[:, :, 1:] * (each[:, :, :1] - best).exp())

    def _candidates(self, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best k of every shard, in descending order of value: values and ids [N, S · K], and a bound [N, 1].

        Only values above the bound are sure to be in the order of the whole row. Shards with less than k columns
        are filled up with values of -inf, behind all ids.
        """
        here = min(k, len(self.own))
        values, at = _top(x, here)
        ids = at + self.own.start
        if k > here:
            values = F.pad(values, (0, k - here), value=-torch.inf)
            ids = F.pad(ids, (0, k - here), value=self._parts[-1].stop)
        gathered, ids = self._gather_with_ids(values, ids)
        # Of each shard that has further columns, these may be as good as the last that it gave.
        further = [each[:, -1:] for each, own in zip(gathered, self._parts, strict=True) if len(own) > k]
        bound = reduce(torch.maximum, further) if further else torch.full_like(values[:, -1:], -torch.inf)
        # By shard, and within one by value and id: a stable sort leaves equal values in order of their ids.
        values, order = gathered.transpose(0, 1).flatten(1).sort(dim=-1, descending=True, stable=True)
        return values, ids.transpose(0, 1).flatten(1).gather(1, order), bound

    def _gather_with_ids(self, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Both of all shards, as one message: fp32 holds ids below 2^24 exactly."""
        gathered = self._parallel.all_gather(torch.stack((values, ids.to(values.dtype))))
        return gathered[:, 0], gathered[:, 1].to(torch.int64)

    def _crossing(
        self, logits: Tensor, largest: Tensor, mass: Tensor, top_p: float, candidates: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Value and id of the last token of each nucleus, [N, 1] each, and whether they are certain, bool [N]."""
        values, ids, bound = self._candidates(logits, candidates)
        crossed = ((values - largest).exp() / mass).cumsum(-1) > top_p
        # Rounding may keep the sum of all below top_p: then the nucleus is the whole row.
        last = torch.where(crossed.any(-1), crossed.to(torch.uint8).argmax(-1), values.shape[1] - 1)[:, None]
        value = values.gather(1, last)
        certain = (value > bound) & crossed.any(-1, keepdim=True)
        return value, ids.gather(1, last), certain[:, 0]


def vocabulary_axis(size: int, parallel: TensorParallelGroup) -> VocabularyAxis:
    """The axis of the logits that a model's shard computes."""
    return VocabularyAxis(size) if parallel.size == 1 else VocabularyShard(size, parallel)


def _top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values [N, K] of each row in descending order, and their columns; equal ones by column.

    torch's topk leaves open which of equal values it takes, and in which order.
    """
    values = x.topk(k, dim=-1).values
    if k == 0:
        return values, torch.empty_like(values, dtype=torch.int64)
    least = values[:, -1:]
    above, equal = x > least, x == least
    room = k - above.sum(-1, keepdim=True)
    taken = above | (equal & (equal.cumsum(-1) <= room))
    columns = torch.arange(x.shape[-1], device=x.device)
    # Ascending, so that a stable sort by value leaves equal ones in this order. (Rows with NaN take nothing.)
    behind = x.shape[-1] - 1
    ids = torch.where(taken, columns, behind).topk(k, dim=-1, largest=False, sorted=True).values
    order = x.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return values, ids.gather(1, order)
