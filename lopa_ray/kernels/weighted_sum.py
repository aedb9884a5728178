"""The weighted sum of what the experts of each row have computed.

Shape suffixes: R rows, P experts per row, S sorted rows, D hidden size, N experts that a shard has.
"""

from __future__ import annotations

from torch import Tensor

from lopa_ray.kernels.operators import operator


@operator(lambda results, places, *_: results.new_empty(len(places), results.shape[1]), launches=1)
def weighted_sum(results: Tensor, places: Tensor, weights: Tensor, ends: Tensor | None = None) -> Tensor:
    """Sorted results [S, D], of which each row has those at `places` int64 [R, P], times weights fp32 [R, P] → [R, D].
    Sums are in fp32. With `ends` int32 [N], results after the last end have no value, and count as 0."""
    of_rows = results[places].float()
    if ends is not None:
        of_rows = of_rows.masked_fill((places >= ends[-1])[:, :, None], 0)
    return (of_rows * weights[:, :, None]).sum(dim=1).to(results.dtype)
