"""Changes of logits that a request's settings demand, in the form in which plans carry them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.request_checks import check_generated
from lopa_ray.protocol.logit_changes import LogitChanges, pack_ids
from lopa_ray.protocol.vocabulary import Vocabulary


def initial_logit_changes(
    settings: GenerationSettings, prompt: Sequence[int], vocabulary: Vocabulary
) -> LogitChanges | None:
    """The changes before anything is decided; None if the settings ask for none.

    No penalty counts the tokens that end an answer: they fill the canvas behind its end, and close the turns of a
    chat in the prompt.

    Raises SettingsError for a bias on a token that is none, or on the mask token.
    """
    check_generated(settings.logit_bias, vocabulary, "logit_bias", "token ")
    ending_ids = (vocabulary.eos_token_id, *vocabulary.stop_token_ids, *settings.stop_token_ids)
    changes = LogitChanges(
        settings.repetition_penalty,
        settings.frequency_penalty,
        settings.presence_penalty,
        biased=pack_ids(settings.logit_bias),
        biases=np.fromiter(settings.logit_bias.values(), np.float64).tobytes(),
        uncounted_ids=(vocabulary.mask_token_id, *ending_ids),
        prompt=b"" if settings.repetition_penalty == 1 else pack_ids(sorted({*prompt} - {*ending_ids})),
    )
    return changes if changes.has_penalties or changes.biased else None
