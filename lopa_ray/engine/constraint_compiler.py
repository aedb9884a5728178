"""ConstraintCompiler: compiles the requirements of `GenerationSettings` on an answer's text into constraints."""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import Lock

import numpy as np

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.banned_words import ban_words, restrict
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import build_constraint, token_functions
from lopa_ray.constraints.structural_tag import StructuralTag, tagged_text_automaton
from lopa_ray.errors import SettingsError, about_setting
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

CONSTRAINT_CACHE_SIZE = 16
"""Constraints that are cached, for each of the three ways to make one."""


class ConstraintCompiler:
    """Compiles constraints for one tokenizer, one at a time, and caches the most recently used ones."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._from_regex_cached = lru_cache(CONSTRAINT_CACHE_SIZE)(self._from_regex)
        self._from_tag_cached = lru_cache(CONSTRAINT_CACHE_SIZE)(self._from_tag)
        self._restrict_cached = lru_cache(CONSTRAINT_CACHE_SIZE)(self._restrict)
        self._lock = Lock()

    def compile(self, settings: GenerationSettings) -> Constraint | None:
        """The constraint that accepts exactly the texts that `settings` allow; None if they allow all texts.

        Raises SettingsError if the tokenizer is not byte-level, if `ByteAutomaton.from_regex` rejects the pattern, or
        if the constraint is too large for the vocabulary.
        """
        with self._lock, about_setting(settings.constraint_setting):
            constraint: Constraint | None = None
            if settings.guided_structural_tag is not None:
                constraint = self._from_tag_cached(settings.guided_structural_tag)
            elif settings.pattern is not None:
                constraint = self._from_regex_cached(settings.pattern, settings.guided_regex is None)
            if settings.bad_words:
                constraint = self._restrict_cached(constraint, settings.bad_words)
            return constraint

    def _from_regex(self, regex: str, trusted: bool) -> Constraint:
        # This comes first, because it raises for a tokenizer that is not byte-level.
        token_bytes = self._token_bytes
        automaton = ByteAutomaton.from_regex(regex, trusted=trusted)
        function_ids, functions = token_functions(automaton.transitions, token_bytes)
        return build_constraint(function_ids, functions, automaton.accepting, self._vocabulary.eos_token_id)

    def _from_tag(self, text: str) -> Constraint:
        """The constraint of a structural tag, given as JSON.

        Added tokens count as the bytes of their text here. Special tokens that no structure names are allowed in the
        free text and change no state, because they are not shown in the answer's text.
        """
        token_bytes, neutral = list(self._token_bytes), []
        tag = StructuralTag.parse(text)
        automaton, num_free_states = tagged_text_automaton(tag)
        for token, (written, special) in self._tokenizer.added_tokens.items():
            if token >= self._vocabulary.size or token == self._vocabulary.mask_token_id:
                continue
            if special and written not in tag.literals:
                neutral.append(token)
            else:
                token_bytes[token] = written.encode()
        function_ids, functions = token_functions(automaton.transitions, token_bytes)
        stays = np.arange(functions.shape[1])
        stays[num_free_states:] = functions.shape[1] - 1
        function_ids[neutral] = len(functions)
        functions = np.append(functions, stays[None].astype(functions.dtype), axis=0)
        return build_constraint(function_ids, functions, automaton.accepting, self._vocabulary.eos_token_id)

    def _restrict(self, constraint: Constraint | None, bad_words: tuple[str, ...]) -> Constraint:
        bans = ban_words(bad_words, self._token_bytes, self._vocabulary.eos_token_id)
        return bans if constraint is None else restrict(constraint, bans)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        """The bytes of every id of the vocabulary; empty for special tokens, added tokens and padding."""
        tokenizer, size = self._tokenizer, self._vocabulary.size
        if not tokenizer.byte_level:
            raise SettingsError(
                "structured output and bad_words need a byte-level tokenizer, whose tokens have the same bytes in any "
                "place; this checkpoint's is not byte-level: leave response_format, guided_* and bad_words out"
            )
        known = min(size, tokenizer.vocab_size)
        return [tokenizer.regular_token_bytes(token) for token in range(known)] + [b""] * (size - known)
