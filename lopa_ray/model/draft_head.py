"""DraftHead: a small network beside the LM head that drafts token after token, without a forward of the model.

It reads the hidden row that has decided a token, and that token: so unlike drafts at masks its drafts know the tokens
before them. One MLP serves all depths. It scores the tokens that answers have most often alone. Published: recurrent
drafters (arXiv 2403.09919, 2404.19124), with features of the model as in Hydra (arXiv 2402.05109), and with a part of
the vocabulary as in FR-Spec (arXiv 2502.14856).

Shape suffixes: B rows to continue, W beams, J drafts in a row, D hidden size, F tokens that it may draft.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.linear import Linear


class DraftHead(nn.Module):
    def __init__(self, config: NativeConfig, num_tokens: int, width: int) -> None:
        """`num_tokens` is F, `width` the width of the MLP."""
        super().__init__()
        d, self.eps = config.hidden_size, config.rms_norm_eps
        self.tokens = nn.Parameter(torch.empty(num_tokens, dtype=torch.int64), requires_grad=False)
        self.hidden_norm, self.token_norm, self.score_norm = (nn.Parameter(torch.ones(d)) for _ in range(3))
        self.mix = Linear(config, (width, 2 * d), quantization="none")
        self.update = Linear(config, (d, width), quantization="none")
        self.project = Linear(config, (d, d), quantization="none")
        self.scores = Linear(config, (num_tokens, d), quantization="none")

    def advance(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Rows [B, D] that have decided a token, and the embeddings [B, D] of these tokens, in one dtype → rows [B, D]
        that stand in for those of the model at the next position."""
        rows = torch.cat(
            (self._norm(hidden, self.hidden_norm), self._norm(embedded, self.token_norm)), dim=-1
        )
        following: Tensor = hidden + self.update(F.silu(self.mix(rows)))
        return following

    def score(self, hidden: Tensor) -> Tensor:
        """Rows [B, D] → logits [B, F] of the tokens that it may draft, in their dtype."""
        scores: Tensor = self.scores(self.project(self._norm(hidden, self.score_norm)))
        return scores

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.eps)

    def forward(
        self, hidden: Tensor, tokens: Tensor, embed: nn.Embedding, beams: int, depth: int
    ) -> tuple[Tensor, Tensor]:
        """The `beams` most likely beams (F at most) of `depth` tokens after rows `hidden` [B, D], in the model's dtype,
        that have decided `tokens` int64 [B]. Returns the tokens int64 [B, W, J], and fp32 [B, W, J] the probability of
        each beam up to that token; most likely beams first."""
        count, width, beams = len(hidden), 1, min(beams, len(self.tokens))
        ids = tokens.new_empty(count, 1, 0)
        logprobs = torch.zeros(count, 1, 1, dtype=torch.float32, device=hidden.device)
        for _ in range(depth):
            hidden = self.advance(hidden, embed(tokens))
            scores = self.score(hidden).float()
            best, drafts = (scores - scores.logsumexp(-1, keepdim=True)).topk(beams)
            joint = (logprobs[:, :, -1:] + best.view(count, width, beams)).flatten(1)
            total, chosen = joint.topk(beams)
            parents = chosen // beams  # [B, W]: the beam that each new one continues
            drafts = self.tokens[drafts.view(count, -1).gather(1, chosen)]
            ids = torch.cat((_of_parents(ids, parents), drafts[:, :, None]), dim=2)
            logprobs = torch.cat((_of_parents(logprobs, parents), total[:, :, None]), dim=2)
            hidden = _of_parents(hidden.view(count, width, -1), parents).flatten(0, 1)
            tokens, width = drafts.flatten(), beams
        return ids, logprobs[:, :, 1:].exp()


def _of_parents(values: Tensor, parents: Tensor) -> Tensor:
    """values [B, old W, ...] of the beams that int64 [B, W] names: [B, W, ...]."""
    return values.gather(1, parents[:, :, None].expand(-1, -1, values.shape[2]))
