"""GreedyMatchSession: whether greedy decoding gives exactly the tokens of a target."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from lopa_ray.decoding.decoders.vanilla import VanillaSession, VanillaSettings
from lopa_ray.decoding.request_checks import check_known
from lopa_ray.protocol.outcome import FinishReason
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.vocabulary import Vocabulary


class GreedyMatchSession(VanillaSession):
    """One target, decoded as LLaDA's evaluation code does it (`suffix_greedy_prediction`): from a canvas of as many
    masks each step fills the position that is surest of its most likely token, by the plain softmax in fp32. The
    request ends with the first token that differs from the target's: `generated` is the target if all agree."""

    _uses_dream_sampler = False

    def __init__(self, prefix: Sequence[int], target: Sequence[int], vocabulary: Vocabulary) -> None:
        """Raises PromptError as `LikelihoodSession` does."""
        check_known(target, vocabulary, "the target")
        self.target = list(target)
        settings = VanillaSettings(max_new_tokens=len(target), ignore_eos=True)
        super().__init__(prefix, settings, vocabulary)

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """The plain softmax in fp32; generation with LLaDA's sampler has fp64."""
        return SamplingParams()

    def _finish_reason(self) -> FinishReason | None:
        mask = self.vocabulary.mask_token_id
        pairs = zip(self.generated, self.target, strict=True)
        if any(token not in (mask, wanted) for token, wanted in pairs):
            return "stop"
        return super()._finish_reason()
