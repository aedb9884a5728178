"""Texts that an automaton over bytes accepts, and texts that differ a little from them."""

from __future__ import annotations

import random

import numpy as np

from lopa_ray.constraints.byte_automaton import ByteAutomaton

ENOUGH = 60
"""Bytes after which a text goes the shortest way to its end."""


class TextSampler:
    """Draws texts that an automaton accepts, by a walk along its transitions."""

    def __init__(self, automaton: ByteAutomaton, seed: int) -> None:
        self._automaton, self._random = automaton, random.Random(seed)
        self._dead = len(automaton.transitions) - 1
        self._to_end = self._steps_to_end()
        self._targets: dict[int, dict[int, list[int]]] = {}

    def _steps_to_end(self) -> np.ndarray:
        """The bytes that are missing at least from each state."""
        steps = np.where(self._automaton.accepting, 0, 10**9)
        while True:
            nearer = np.minimum(steps, steps[self._automaton.transitions].min(axis=1) + 1)
            if (nearer == steps).all():
                return steps
            steps = nearer

    def _bytes_by_target(self, state: int) -> dict[int, list[int]]:
        if state not in self._targets:
            found: dict[int, list[int]] = {}
            for byte, target in enumerate(self._automaton.transitions[state].tolist()):
                if target != self._dead:
                    found.setdefault(target, []).append(byte)
            self._targets[state] = found
        return self._targets[state]

    def draw(self) -> str:
        """A text that the automaton accepts."""
        state, text = 0, bytearray()
        hurry = self._random.random()
        while True:
            by_target = self._bytes_by_target(state)
            if self._automaton.accepting[state] and (not by_target or self._random.random() < 0.3):
                return text.decode()
            targets = list(by_target)
            if len(text) > ENOUGH or self._random.random() < hurry:
                least = min(self._to_end[target] for target in targets)
                if self._automaton.accepting[state] and len(text) > ENOUGH:
                    return text.decode()
                targets = [target for target in targets if self._to_end[target] == least]
            state = self._random.choice(targets)
            text.append(self._random.choice(by_target[state]))

    def mutated(self, text: str) -> str:
        """A text with a few characters left out, doubled or exchanged."""
        characters = list(text)
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(characters) + 1)
            taken = self._random.choice(characters) if characters else "1"
            taken = self._random.choice([taken, *'0159-.e{}[],:" aZ'])
            match self._random.randrange(3):
                case 0:
                    del characters[at : at + 1]
                case 1:
                    characters.insert(at, taken)
                case _:
                    characters[at : at + 1] = [taken]
        return "".join(characters)
