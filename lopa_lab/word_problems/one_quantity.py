"""Stories of one quantity: how it begins, what happens to it, what is asked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from lopa_lab.word_problems.stories import ONE_QUANTITY, SENTENCES, Kind, Wordings


def story_of(
    first: str, answer: str, numbers: Mapping[str, str], sentences: Sequence[str], weight: float
) -> Kind | None:
    """A story of one quantity, which begins with the sentence `first`; None if nothing is calculated in it.

    `answer` and `numbers` belong to the beginning.
    """
    if first == "difference" and sentences[-1] == "how_many":
        sentences = (*sentences[:-1], "how_many_now")
    numbers, story, of = dict(numbers), [SENTENCES[first]], "t" if answer else "a"
    letters, results = iter("cdefg"), iter("uvwx")
    for sentence in sentences:
        step, kind_of_number = ONE_QUANTITY["steps"].get(sentence, ("", ""))
        letter = next(letters) if kind_of_number else ""
        if letter:
            numbers[letter] = kind_of_number
        if step:
            to = next(results)
            if not answer:
                step = step.replace("<Then|So> {he}", "<So|Now> {name}").replace("<Then|", "<Now|")
            answer += step.replace("{to}", to).replace("{of}", of).replace("{x}", letter)
            of = to
        story.append(with_letter(SENTENCES[sentence], letter))
    return Kind(tuple(story), answer.strip(), numbers, weight) if answer else None


def with_letter(sentence: Wordings, letter: str) -> Wordings:
    """An event's sentence with the letter of its number."""
    number = "{" + letter + "}"
    texts = sentence.trained, sentence.held_out
    return Wordings(*(tuple(text.replace("{x}", number) for text in of_side) for of_side in texts))


CHAINS = [(*events, asked) for asked, chains in ONE_QUANTITY["chains"].items() for events in chains]
"""Names of the sentences on what happens to a quantity, and what is asked."""
STORIES_OF_ONE = tuple(
    kind
    for (first, (answer, numbers)), chain in itertools.product(ONE_QUANTITY["beginnings"].items(), CHAINS)
    if (kind := story_of(first, answer, numbers, chain, 0.35)) is not None
)
