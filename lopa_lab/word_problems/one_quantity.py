"""Stories of one quantity: how it begins, what happens to it, what is asked."""

from __future__ import annotations

import itertools

from lopa_lab.word_problems.stories import FACTOR, NUMBER, ONE_DIGIT, SENTENCES, Kind, Wordings

BEGINNINGS = (
    ("count", "", {"a": NUMBER}),
    ("product", "<So|Now> {name} <has|gets> [t=a*b] {item}. ", {"a": ONE_DIGIT, "b": FACTOR}),
    ("sum", "<So|Now> {name} <has|gets> [t=a+b] {item}. ", {"a": NUMBER, "b": NUMBER}),
    ("difference", "<So|Now> {name} <has|gets> [t=a-b] {item}. ", {"a": NUMBER, "b": NUMBER}),
    ("rate", "<So|Now> {name} <has|gets> [t=a*b] {item}. ", {"a": FACTOR, "b": ONE_DIGIT}),
)
STEPS = {
    "lose": ("<Then|So> {he} <has|gets> [{to}={of}-{x}] {item}. ", NUMBER),
    "gain": ("<Then|So> {he} <has|gets> [{to}={of}+{x}] {item}. ", NUMBER),
    "halve": ("<Then|So> {he} <has|gets> [{to}={of}/2] {item}. ", None),
    "split": ("<Then|So> each <has|gets> [{to}={of}/{x}] {item}. ", ONE_DIGIT),
    "group": ("<Then|So> {he} <has|needs> [{to}={of}/{x}] {box2}. ", ONE_DIGIT),
}
"""Sentences with a number, or in which something is calculated → the step of the answer, and the number's range."""
CHAINS = tuple(
    (*events, ending)
    for ending, chains in {
        "how_many": ((), ("gain",), ("gain", "gain")),
        "how_many_now": (("lose", "gain"), ("halve", "gain")),
        "how_many_left": (("lose",), ("halve",), ("gain", "lose"), ("lose", "lose"), ("gain", "halve")),
        "split": ((), ("gain",), ("lose",)),
        "group": ((), ("gain",)),
    }.items()
    for events in chains
)
"""What happens to a quantity, and what is asked: names of sentences."""


def story_of(
    beginning: tuple[str, str, dict[str, str]], sentences: tuple[str, ...], weight: float
) -> Kind | None:
    """A story of one quantity; None if nothing is calculated in it."""
    first, answer, numbers = beginning
    if first == "difference" and sentences[-1] == "how_many":
        sentences = (*sentences[:-1], "how_many_now")
    numbers, story, of = dict(numbers), [SENTENCES[first]], "t" if answer else "a"
    letters, results = iter("cdefg"), iter("uvwx")
    for sentence in sentences:
        step, kind_of_number = STEPS.get(sentence, ("", None))
        letter = next(letters) if kind_of_number else ""
        if letter and kind_of_number:
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


ONE_QUANTITY = tuple(
    kind
    for beginning, sentences in itertools.product(BEGINNINGS, CHAINS)
    if (kind := story_of(beginning, sentences, 0.35)) is not None
)
