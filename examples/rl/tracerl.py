"""TraceRL's objective (arXiv 2509.06949), for answers whose reward is known.

An answer is a sequence of denoising steps, and a step decides several tokens at once, given what the steps before it
decided. The objective is about the probabilities of exactly these decisions:

    J = mean over steps and their tokens of  min(r A, clip(r, 1 - ε, 1 + ε) A)  -  β KL

- r: the token's probability at its step under the present weights ÷ the same under those that decoded it;
- A: the answer's reward, less the mean of the rewards of all answers to its prompt, ÷ their standard deviation. Answers
  to a prompt that all have the same reward say nothing;
- KL: to the weights that decoded it, estimated as 1/r - 1 + log r.

Every token counts the same, as in the paper's trainer for models with block attention; a mean over the tokens of each
step would give little weight to steps that decide much at once, and those go wrong. The paper's value model is left
out, and no steps are joined (its shrinkage is 1). ε and β are those of its configurations.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLIP, KL_WEIGHT = 0.2, 0.01


def advantages(rewards: Tensor) -> Tensor:
    """Advantages [..., G] of groups of answers from their rewards, both float32; 0 where all rewards are equal."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    deviation = rewards.std(-1, correction=0, keepdim=True)
    return torch.where(deviation > 0, centred / deviation, 0.0)


def objective(logprobs: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """The objective, summed over T tokens instead of their mean: a scalar, to be maximised.

    logprobs, old [T]: of the decided tokens, under the present weights and under those that decided them; advantage
    [T]: of each token's answer. All are float32.
    """
    log_ratio = logprobs - old
    ratio = log_ratio.exp()
    clipped = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    return (clipped - KL_WEIGHT * ((-log_ratio).exp() - 1 + log_ratio)).sum()
