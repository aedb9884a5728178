"""Requests that give tokens of their answers, for any decoder."""

from __future__ import annotations

from hypothesis import assume, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import VOCABULARY

GIVEN = st.dictionaries(
    st.one_of(st.integers(0, 8), st.integers(0, 39)), st.integers(0, VOCABULARY.eos_token_id - 1), max_size=12
)
"""Offset → token. They may exceed the answer, and lie where a block-causal decoder does not see them."""


def fitting(given: dict[int, int], settings: GenerationSettings) -> dict[int, int]:
    """Those that are in the answer, and leave a position of it."""
    fitting = {at: token for at, token in given.items() if at < settings.max_new_tokens}
    if len(fitting) == settings.max_new_tokens:
        del fitting[max(fitting)]
    return fitting


def session_with(
    prompt: list[int],
    settings: GenerationSettings,
    given: dict[int, int],
    vocabulary: Vocabulary = VOCABULARY,
    constraint: Constraint | None = None,
) -> DecodeSession:
    """A session with those of the given tokens that the decoder has a place for: behind a hole, what it sees."""
    tokens = fitting(given, settings)
    while True:
        try:
            return new_session(prompt, settings, vocabulary, constraint, GivenTokens(tokens))
        except SettingsError as error:
            assume("sees nothing from position" in str(error))
            del tokens[max(tokens)]
