"""Penalties and biases once more, token by token in plain Python, as the documentation defines them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.protocol.vocabulary import Vocabulary


def changed_logits(
    logits: Tensor,
    prompt: Sequence[int],
    answer: Sequence[int],
    settings: GenerationSettings,
    vocabulary: Vocabulary,
) -> Tensor:
    """Logits [V] of a position, where a branch's answer stands as `answer`, its fills and masks included."""
    uncounted = {
        vocabulary.mask_token_id,
        vocabulary.eos_token_id,
        *vocabulary.stop_token_ids,
        *settings.stop_token_ids,
    }
    changed = []
    for token, logit in enumerate(logits.tolist()):
        count = 0 if token in uncounted else list(answer).count(token)
        logit += settings.logit_bias.get(token, 0.0)
        if token not in uncounted and (count or token in prompt):
            logit = logit / settings.repetition_penalty if logit > 0 else logit * settings.repetition_penalty
        if count:
            logit -= settings.frequency_penalty * count + settings.presence_penalty
        changed.append(logit)
    return logits.new_tensor(changed)
