"""Stories of one quantity: how it begins, what happens to it, what is asked."""

from __future__ import annotations

import itertools

from lopa_lab.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind
from lopa_lab.word_problems.wordings import (
    COUNT,
    DIFFERENCE,
    GAIN,
    GROUP,
    HALVE,
    HOW_MANY,
    HOW_MANY_LEFT,
    HOW_MANY_NOW,
    LOSE,
    PRODUCT,
    RATE,
    SPLIT,
    SUM,
    Wordings,
)

BEGINNINGS = (
    (COUNT, "", {"a": NUMBER}),
    (PRODUCT, "<So|Now> {name} <has|gets> [t=a*b] {item}. ", {"a": ONE_DIGIT, "b": FACTOR}),
    (SUM, "<So|Now> {name} <has|gets> [t=a+b] {item}. ", {"a": NUMBER, "b": NUMBER}),
    (DIFFERENCE, "<So|Now> {name} <has|gets> [t=a-b] {item}. ", {"a": NUMBER, "b": NUMBER}),
    (RATE, "<So|Now> {name} <has|gets> [t=a*b] {item}. ", {"a": FACTOR, "b": ONE_DIGIT}),
)
EVENTS = {
    "lose": (LOSE, "<Then|So> {he} <has|gets> [{to}={of}-{x}] {item}. ", NUMBER),
    "gain": (GAIN, "<Then|So> {he} <has|gets> [{to}={of}+{x}] {item}. ", NUMBER),
    "halve": (HALVE, "<Then|So> {he} <has|gets> [{to}={of}/2] {item}. ", None),
}
ENDINGS = {
    "in all": (HOW_MANY, "", None),
    "now": (HOW_MANY_NOW, "", None),
    "left": (HOW_MANY_LEFT, "", None),
    "split": (SPLIT, "<Then|So> each <has|gets> [{to}={of}/{x}] {item}. ", ONE_DIGIT),
    "group": (GROUP, "<Then|So> {he} <has|needs> [{to}={of}/{x}] {box2}. ", ONE_DIGIT),
}
STORIES = tuple(
    (events, ending)
    for ending, chains in {
        "in all": ((), ("gain",), ("gain", "gain")),
        "now": (("lose", "gain"), ("halve", "gain")),
        "left": (("lose",), ("halve",), ("gain", "lose"), ("lose", "lose"), ("gain", "halve")),
        "split": ((), ("gain",), ("lose",)),
        "group": ((), ("gain",)),
    }.items()
    for events in chains
)


def story_of(
    beginning: tuple[Wordings, str, dict[str, str]], events: tuple[str, ...], ending: str, weight: float
) -> Kind | None:
    """A story of one quantity; None if nothing is calculated in it."""
    first, answer, numbers = beginning
    if first is DIFFERENCE and ending == "in all":
        ending = "now"
    numbers, story, of = dict(numbers), [first], "t" if answer else "a"
    letters, results = iter("cdefg"), iter("uvwx")
    for sentence, step, kind_of_number in [*(EVENTS[event] for event in events), ENDINGS[ending]]:
        letter = next(letters) if kind_of_number else ""
        if letter and kind_of_number:
            numbers[letter] = kind_of_number
        if step:
            to = next(results)
            step = (
                step
                if answer
                else step.replace("<Then|So> {he}", "<So|Now> {name}").replace("<Then|", "<Now|")
            )
            answer += step.replace("{to}", to).replace("{of}", of).replace("{x}", letter)
            of = to
        story.append(with_letter(sentence, letter))
    return Kind(tuple(story), answer.strip(), numbers, weight) if answer else None


def with_letter(sentence: Wordings, letter: str) -> Wordings:
    """An event's sentence with the letter of its number."""
    number = "{" + letter + "}"
    return Wordings(
        *(
            tuple(text.replace("{x}", number) for text in texts)
            for texts in (sentence.trained, sentence.held_out)
        )
    )


ONE_QUANTITY = tuple(
    kind
    for beginning, (events, ending) in itertools.product(BEGINNINGS, STORIES)
    if (kind := story_of(beginning, events, ending, 0.35)) is not None
)
