"""Operations of scoring along the vocabulary, over whole rows of logits, or over rows that are divided among shards.

Shards exchange a few numbers per row, and whole rows only if a nucleus may contain very many tokens. Of equal values
the one with the lowest id is taken, on any number of shards.

Shape suffixes: N rows, V vocabulary (of a shard: its part of it), K best tokens, S shards.
"""

from __future__ import annotations

from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.model.tensor_parallel import TensorParallelGroup, shard_range

NUCLEUS_CANDIDATES = 64
"""Number of best tokens of each shard among which the end of a nucleus is searched first."""


class VocabOps:
    """Operations along the vocabulary of whole rows x [N, V] of any floating dtype, with torch.

    Results have the dtype of x unless a method says otherwise.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        """Size of the whole vocabulary."""
        self.local_ids = range(vocab_size)
        """The ids of the columns of this shard."""

    def softmax(self, x: Tensor) -> Tensor:
        """Softmax probabilities of the columns of this shard: x [N, V] → [N, V] in the dtype of x."""
        return x.softmax(-1)

    def logsumexp(self, x: Tensor) -> Tensor:
        """ln Σ exp of each row: x [N, V] → [N, 1] in the dtype of x."""
        return x.logsumexp(-1, keepdim=True)

    def amax(self, x: Tensor) -> Tensor:
        """The largest value of each row: x [N, V] → [N, 1] in the dtype of x."""
        return x.amax(-1, keepdim=True)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of each row: x [N, V] → [N], in the dtype of x; int64 for bool and integers."""
        return x.sum(-1)

    def all(self, x: Tensor) -> Tensor:
        """Whether all values of each row are true: bool x [N, V] → bool [N]."""
        return x.all(-1)

    def argmax(self, x: Tensor) -> Tensor:
        """The id of the largest value of each row: x [N, V] → int64 [N]."""
        return x.argmax(-1)

    def gather(self, x: Tensor, ids: Tensor) -> Tensor:
        """The values [N, 1] of x [N, V] at one id per row, `ids` int64 [N]."""
        return self.gather_several(x, ids[:, None])

    def gather_several(self, x: Tensor, ids: Tensor) -> Tensor:
        """The values [N, K] of x [N, V] at K ids per row, `ids` int64 [N, K], in the dtype of x."""
        return x.gather(1, ids)

    def topk_values(self, x: Tensor, k: int) -> Tensor:
        """The largest values of x [N, V] in descending order: [N, K] in the dtype of x."""
        return x.topk(k, dim=-1).values

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The largest values of x [N, V] in descending order, [N, K] in the dtype of x, and their ids, int64 [N, K]."""
        return _stable_topk(x, k)

    def sample(self, weights: Tensor, uniform: Tensor) -> Tensor:
        """Inverse-CDF sampling: `weights` [N, V] ≥ 0 (not all 0), `uniform` [N] in [0, 1) → ids int64 [N].

        Rounding can move a draw beyond the last token or, with a parallel cumulative sum, to a token of weight 0. Then
        the token with the largest weight is taken.
        """
        cumulative = weights.cumsum(-1)
        target = uniform[:, None] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, target, right=True).clamp_max(weights.shape[-1] - 1)
        heaviest = weights.argmax(-1, keepdim=True)
        return torch.where(weights.gather(1, drawn) > 0, drawn, heaviest)[:, 0]

    def outside_nucleus(self, logits: Tensor, top_p: Tensor) -> Tensor:
        """Whether each token is outside the nucleus: logits [N, V] → bool [N, V].

        The nucleus has the most likely tokens, up to the one with which their total probability exceeds `top_p` [N, 1].
        """
        ordered, index = logits.sort(dim=-1, descending=True, stable=True)
        before = ordered.softmax(-1).cumsum(-1)
        outside = torch.zeros_like(before, dtype=torch.bool)
        outside[:, 1:] = before[:, :-1] > top_p
        return torch.zeros_like(outside).scatter(1, index, outside)

    def gather_vocab(self, x: Tensor) -> Tensor:
        """x [N, V] → [N, whole vocabulary] in the dtype of x. For research and tests; scoring does not use it."""
        return x


class VocabParallelOps(VocabOps):
    """The same operations, and ids of the whole vocabulary, over rows whose columns are divided among shards.

    All shards must make the same calls in the same order. They get the results of whole rows. The end of a nucleus is
    searched among the best `NUCLEUS_CANDIDATES` tokens of each shard first, then in whole rows.
    """

    def __init__(self, vocab_size: int, tp_group: TensorParallelGroup) -> None:
        super().__init__(vocab_size)
        self.local_ids = shard_range(vocab_size, tp_group.rank, tp_group.size)
        self._shard_ids = [shard_range(vocab_size, rank, tp_group.size) for rank in range(tp_group.size)]
        self._max_shard_size = len(self._shard_ids[0])
        self._tp_group = tp_group

    def softmax(self, x: Tensor) -> Tensor:
        largest, sum_exp = self._max_and_sum_exp(x)
        return (x - largest).exp() / sum_exp

    def logsumexp(self, x: Tensor) -> Tensor:
        largest, sum_exp = self._max_and_sum_exp(x)
        return largest + sum_exp.log()

    def amax(self, x: Tensor) -> Tensor:
        return self._tp_group.all_gather(x.amax(-1, keepdim=True)).amax(0)

    def sum(self, x: Tensor) -> Tensor:
        return self._tp_group.all_reduce(x.sum(-1))

    def all(self, x: Tensor) -> Tensor:
        return self._tp_group.all_reduce((~x).sum(-1)) == 0

    def argmax(self, x: Tensor) -> Tensor:
        best = x.argmax(-1, keepdim=True)
        values, ids = self._gather_with_ids(x.gather(1, best), best + self.local_ids.start)
        return ids.gather(0, values.argmax(0)[None])[0, :, 0]

    def gather_several(self, x: Tensor, ids: Tensor) -> Tensor:
        here = ids - self.local_ids.start
        mine = (here >= 0) & (here < len(self.local_ids))
        values = x.gather(1, here.clamp(0, len(self.local_ids) - 1))
        return self._tp_group.all_reduce(torch.where(mine, values, torch.zeros_like(values)))

    def topk_values(self, x: Tensor, k: int) -> Tensor:
        here = min(k, len(self.local_ids))
        values = F.pad(x.topk(here, dim=-1).values, (0, k - here), value=-torch.inf)
        return self._tp_group.all_gather(values).transpose(0, 1).flatten(1).topk(k, dim=-1).values

    def topk(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if k == 0:
            return _stable_topk(x, 0)
        values, ids, _ = self._candidates(x, k)
        return values[:, :k], ids[:, :k]

    def sample(self, weights: Tensor, uniform: Tensor) -> Tensor:
        # The token comes from the shard whose part of the cumulative sum contains the draw.
        cumulative = weights.cumsum(-1)
        weight_sums = self._tp_group.all_gather(cumulative[:, -1])
        reached = F.pad(weight_sums.cumsum(0), (0, 0, 1, 0))
        target = uniform * reached[-1] - reached[self._tp_group.rank]
        at = torch.searchsorted(cumulative, target[:, None], right=True)
        drawn = at.clamp_max(len(self.local_ids) - 1)
        here = (target[:, None] >= 0) & (at == drawn) & (weights.gather(1, drawn) > 0)
        proposed = self._tp_group.all_gather(torch.where(here, drawn + self.local_ids.start, -1)[:, 0])
        heaviest = self.argmax(weights)
        drawn_ids = proposed.gather(0, (proposed >= 0).to(torch.uint8).argmax(0)[None])[0]
        return torch.where(drawn_ids >= 0, drawn_ids, heaviest)

    def outside_nucleus(self, logits: Tensor, top_p: Tensor) -> Tensor:
        # The host waits for the device to find out whether whole rows are needed.
        largest, sum_exp = self._max_and_sum_exp(logits)
        value, last, certain = self._nucleus_end(logits, largest, sum_exp, top_p, NUCLEUS_CANDIDATES)
        self._tp_group.wait()
        if not bool(certain.all()):
            rest = (~certain).nonzero()[:, 0]
            value[rest], last[rest], _ = self._nucleus_end(
                logits[rest], largest[rest], sum_exp[rest], top_p[rest], self._max_shard_size
            )
        ids = torch.arange(self.local_ids.start, self.local_ids.stop, device=logits.device)
        return (logits < value) | ((logits == value) & (ids > last))

    def gather_vocab(self, x: Tensor) -> Tensor:
        gathered = self._tp_group.all_gather(F.pad(x, (0, self._max_shard_size - len(self.local_ids))))
        return torch.cat(
            [part[:, : len(ids)] for part, ids in zip(gathered, self._shard_ids, strict=True)], -1
        )

    def _max_and_sum_exp(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The maximum of each row, and the sum of the exponentials of the differences to it, [N, 1] each."""
        # A shard may have only values of -inf, and -inf minus -inf would be NaN. So the maximum is finite.
        largest = x.amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
        sum_exp = (x - largest).exp().sum(-1, keepdim=True)
        largest_and_sum = self._tp_group.all_gather(torch.cat((largest, sum_exp), -1))
        best = largest_and_sum[:, :, :1].amax(0)
        return best, reduce(torch.add, largest_and_sum[:, :, 1:] * (largest_and_sum[:, :, :1] - best).exp())

    def _candidates(self, x: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best k of every shard in descending order of value: values and ids [N, S · K], and a bound [N, 1] above
        which the order is that of the whole row. Shards with fewer columns are padded with -inf and the largest id."""
        here = min(k, len(self.local_ids))
        values, at = _stable_topk(x, here)
        ids = at + self.local_ids.start
        if k > here:
            values = F.pad(values, (0, k - here), value=-torch.inf)
            ids = F.pad(ids, (0, k - here), value=self._shard_ids[-1].stop)
        gathered, ids = self._gather_with_ids(values, ids)
        # The further columns of a shard can be as large as the last value that it has sent.
        further = [
            shard_values[:, -1:]
            for shard_values, shard_ids in zip(gathered, self._shard_ids, strict=True)
            if len(shard_ids) > k
        ]
        bound = reduce(torch.maximum, further) if further else torch.full_like(values[:, -1:], -torch.inf)
        # The values are ordered by shard, and within a shard by value and id. So a stable sort keeps equal values in
        # order of their ids.
        values, order = gathered.transpose(0, 1).flatten(1).sort(dim=-1, descending=True, stable=True)
        return values, ids.transpose(0, 1).flatten(1).gather(1, order), bound

    def _gather_with_ids(self, values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The values and ids of all shards, sent as one message. fp32 represents ids below 2^24 exactly."""
        gathered = self._tp_group.all_gather(torch.stack((values, ids.to(values.dtype))))
        return gathered[:, 0], gathered[:, 1].to(torch.int64)

    def _nucleus_end(
        self, logits: Tensor, largest: Tensor, sum_exp: Tensor, top_p: Tensor, candidates: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Value and id of the last token of each nucleus, [N, 1] each, and whether they are certain, bool [N], since
        the nucleus does not extend beyond the `candidates` of a shard."""
        values, ids, bound = self._candidates(logits, candidates)
        crossed = ((values - largest).exp() / sum_exp).cumsum(-1) > top_p
        # Rounding may keep the sum of all probabilities below top_p. Then the nucleus is the whole row.
        last = torch.where(crossed.any(-1), crossed.to(torch.uint8).argmax(-1), values.shape[1] - 1)[:, None]
        value = values.gather(1, last)
        certain = (value > bound) & crossed.any(-1, keepdim=True)
        return value, ids.gather(1, last), certain[:, 0]


def vocab_ops(vocab_size: int, tp_group: TensorParallelGroup) -> VocabOps:
    return VocabOps(vocab_size) if tp_group.size == 1 else VocabParallelOps(vocab_size, tp_group)


def _stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values [N, K] of each row in descending order, and their columns. Equal values are in column order.

    torch.topk does not define which of equal values it returns, nor their order.
    """
    values = x.topk(k, dim=-1).values
    if k == 0:
        return values, torch.empty_like(values, dtype=torch.int64)
    least = values[:, -1:]
    above, equal = x > least, x == least
    room = k - above.sum(-1, keepdim=True)
    taken = above | (equal & (equal.cumsum(-1) <= room))
    columns = torch.arange(x.shape[-1], device=x.device)
    # Columns are ascending, so a stable sort by value keeps equal values in column order. For rows with NaN no column
    # is taken, and all indices are `behind`.
    behind = x.shape[-1] - 1
    ids = torch.where(taken, columns, behind).topk(k, dim=-1, largest=False, sorted=True).values
    order = x.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return values, ids.gather(1, order)
