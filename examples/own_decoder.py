"""A decoder of one's own: each step fills the masks whose most likely token is far ahead of the second one.

lopa generate --decoder own_decoder:MarginSession "Tom has 6 bags. ..."     # in the folder of this file
lopa serve --decoder own_decoder:MarginSession --set decode.lookahead=verified
"""

from typing import Literal

from pydantic import Field

from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoders.block_causal import BlockCausalSession, BlockCausalSettings
from lopa_ray.decoding.unmasking_rules import rank_by_score


class MarginSettings(BlockCausalSettings):
    decoder: Literal["margin"] = "margin"
    ranking: Literal["margin"] = (
        "margin"  # scores are probability of the first token minus that of the second
    )

    min_margin: float = Field(default=0.6, ge=0.0, le=1.0)
    """Masks with at least this margin are filled, and always the one with the largest."""


class MarginSession(BlockCausalSession):
    settings: MarginSettings

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        best = rank_by_score(scores)
        return [position for position in best if scores[position].score >= self.settings.min_margin] or best[
            :1
        ]
