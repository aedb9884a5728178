"""ConstraintCompiler: compiles the rules for an answer's text into a constraint over one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lopa_ray.constraints.banned_words import ban_words, restrict
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.constraints.constraint_spec import ConstraintSpec
from lopa_ray.constraints.json_schema import schema_automaton
from lopa_ray.constraints.structural_tag import StructuralTag, tagged_text_automaton
from lopa_ray.protocol.vocabulary import Vocabulary


class ConstraintCompiler:
    """Can be pickled, and computes only. Its calls may take unbounded time and memory: `CompilePool` bounds them."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        token_bytes: Sequence[bytes],
        added_tokens: Mapping[int, tuple[str, bool]],
    ) -> None:
        """`token_bytes` [vocabulary]: the bytes of each token; empty for special tokens, added tokens and padding.
        `added_tokens`: id → text, and whether it is special."""
        self._vocabulary, self._token_bytes, self._added_tokens = vocabulary, list(token_bytes), added_tokens

    def compile(self, spec: ConstraintSpec) -> Constraint | None:
        """The constraint that accepts exactly the texts that `spec` allows; None if it allows all texts. Raises
        SettingsError for rules that are not supported, or too large for the vocabulary."""
        constraint, eos = None, self._vocabulary.eos_token_id
        if spec.structural_tag is not None:
            constraint = self._from_tag(spec.structural_tag)
        elif (automaton := spec.automaton()) is not None:
            constraint = build_constraint(automaton, self._token_bytes, eos)
        if not spec.bad_words:
            return constraint
        bans = ban_words(spec.bad_words, self._token_bytes, eos)
        return bans if constraint is None else restrict(constraint, bans)

    def schema_size(self, text: str) -> int:
        """The number of states of a schema's automaton. Raises SettingsError."""
        return len(schema_automaton(text).transitions)

    def _from_tag(self, text: str) -> Constraint:
        """Added tokens count as the bytes of their text here. Special tokens that no structure names are allowed in the
        free text and change no state, because they are not shown in the answer's text."""
        token_bytes, neutral = list(self._token_bytes), []
        tag = StructuralTag.parse(text)
        automaton, num_free_states = tagged_text_automaton(tag)
        for token, (written, special) in self._added_tokens.items():
            if token >= self._vocabulary.size or token == self._vocabulary.mask_token_id:
                continue
            if special and written not in tag.literals:
                neutral.append(token)
            else:
                token_bytes[token] = written.encode()
        eos = self._vocabulary.eos_token_id
        return build_constraint(
            automaton, token_bytes, eos, neutral=neutral, num_neutral_states=num_free_states
        )
