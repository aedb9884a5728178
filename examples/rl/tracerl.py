"""TraceRL's objective (arXiv 2509.06949), for answers whose reward is known.

An answer is a sequence of denoising steps, and a step decides several tokens at once, given what the steps before it
decided. The objective is about the probabilities of exactly these decisions:

    J = mean over steps t of  mean over tokens k of t of  min(r A, clip(r, 1 - ε, 1 + ε) A)  -  β sum over k of KL

- r: the token's probability at its step under the present weights ÷ the same under those that decoded it;
- A: the answer's reward, less the mean of the rewards of all answers to its prompt, ÷ their standard deviation. Answers
  to a prompt that all have the same reward say nothing;
- KL: to the weights that decoded it, estimated as 1/r - 1 + log r.

The paper's value model is left out, and no steps are joined (its shrinkage is 1). ε and β are those of its
configurations.
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


def objective(logprobs: Tensor, old: Tensor, step: Tensor, advantage: Tensor) -> Tensor:
    """The objective, summed over N steps instead of their mean: a scalar, to be maximised.

    logprobs, old [T]: of the decided tokens, under the present weights and under those that decoded them; step [T]: the
    step, from 0 to N - 1, that decided each; advantage [N]: of each step's answer.
    """
    log_ratio, of_token = logprobs - old, advantage[step]
    ratio = log_ratio.exp()
    clipped = torch.min(ratio * of_token, ratio.clamp(1 - CLIP, 1 + CLIP) * of_token)
    kl = (-log_ratio).exp() - 1 + log_ratio
    per_step = torch.bincount(step, minlength=len(advantage))[step]
    return (clipped / per_step - KL_WEIGHT * kl).sum()
