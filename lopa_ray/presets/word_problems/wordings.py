"""The words of the problems: names, things, and the wordings of each sentence of a story.

A sentence has several wordings. Training problems use `trained` alone; `held_out` ones stand only in problems
that ask whether a model understands wordings that it never saw.

Placeholders: `{name}`, `{friend}`, `{uncle}` are people, `{he}`, `{him}`, `{his}`, `{He}` the first of them;
`{item}`, `{item2}` are things and `{one}` is one of the first; `{box}` are containers and `{abox}` is one of them;
`{a}` to `{g}` are numbers; `{x}` is the number of an event, which gets a letter where the story is put together.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = {
    "he": (
        "Tom", "Ben", "Sam", "Max", "Leo", "Omar", "Raj", "Jack", "John", "Paul", "Adam", "Luke", "Noah", "Ali",
        "Carlos", "Peter", "David", "James", "Tim", "Mark",
    ),
    "she": (
        "Anna", "Mia", "Zoe", "Lily", "Emma", "Nina", "Sara", "Kate", "Maria", "Julia", "Amy", "Lucy", "Ella",
        "Rosa", "Eva", "Jane", "Lisa", "Alice", "Sophie", "Mary",
    ),
}  # fmt: skip
SYLLABLES = (
    "ba", "be", "da", "de", "fa", "fi", "ga", "jo", "ka", "ki", "la", "lo", "ma", "mi", "na", "no", "pa", "pe",
    "ra", "ri", "sa", "so", "ta", "ti", "va", "wa", "yu", "za",
)  # fmt: skip
"""Of names and things that no list has, so that a model learns to copy words that it does not know."""
ITEMS = (
    "apples", "books", "cards", "coins", "cookies", "eggs", "pens", "shells", "stamps", "stickers", "pencils", "toys",
    "balls", "marbles", "oranges", "flowers", "candles", "cakes", "cups", "plates", "bananas", "lemons", "balloons",
    "photos", "beads", "buttons", "candies", "crayons", "chairs", "bottles", "pears", "plants", "tickets", "trees",
    "fish", "dogs", "cats", "bikes", "cars", "hats", "shirts", "roses", "nuts", "muffins", "puzzles", "games",
)  # fmt: skip
SINGULAR = {"candies": "candy", "fish": "fish", "boxes": "box", "dishes": "dish", "shelves": "shelf"}
"""Of words whose singular is not the plural without its `s`."""
BOXES = (
    "bags",
    "boxes",
    "baskets",
    "packs",
    "jars",
    "trays",
    "shelves",
    "rows",
    "piles",
    "crates",
    "drawers",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
COLORS = ("red", "blue", "green", "yellow", "black", "white")
PLACES = ("park", "shop", "school", "market", "beach", "library")


@dataclass(frozen=True, slots=True)
class Wordings:
    """The wordings of one sentence."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...] = ()


def wordings(*trained: str, held_out: tuple[str, ...] = ()) -> Wordings:
    """Wordings of one sentence, those of the training problems first."""
    return Wordings(trained, held_out)


# How a story of one quantity begins.
COUNT = wordings(
    "{name} has {a} {item}.",
    "{name} had {a} {item}.",
    "There are {a} {item} on {name}'s table.",
    "{name} buys {a} {item}.",
    "{name} starts with {a} {item}.",
    "{name} picks {a} {item} at the {place}.",
    "{name} has a box with {a} {item}.",
    "{name} gets {a} {item} from {uncle}.",
    "At first {name} has {a} {item}.",
    held_out=(
        "On {day} {name} has {a} {item}.",
        "{name} owns {a} {item}.",
        "In the box of {name} there are {a} {item}.",
    ),
)
PRODUCT = wordings(
    "{name} has {a} {box} with {b} {item} in each.",
    "{name} has {a} {box} with {b} {item} in each {abox}.",
    "{name} has {a} {box} with {b} {item} each.",
    "{name} has {a} {box} of {b} {item}.",
    "{name} has {a} {box}. There are {b} {item} in each.",
    "{name} has {a} {box}. Each {abox} has {b} {item}.",
    "{name} has {a} {box} and each {abox} has {b} {item} in it.",
    "{name} buys {a} {box} of {item} with {b} {item} in each.",
    "{name} buys {a} {box} of {item}. There are {b} {item} in each {abox}.",
    "{name} fills {a} {box} with {b} {item} each.",
    "There are {b} {item} in each of {name}'s {a} {box}.",
    "Each of {name}'s {a} {box} has {b} {item}.",
    "{name} puts {b} {item} into each of {a} {box}.",
    held_out=(
        "There are {a} {box} on {name}'s table, with {b} {item} in each.",
        "{name} gets {a} {box} from {uncle}. Every {abox} holds {b} {item}.",
        "In each of the {a} {box} that {name} has there are {b} {item}.",
    ),
)
SUM = wordings(
    "{name} has {a} {item} and finds {b} more.",
    "{name} has {a} {item} and buys {b} more {item}.",
    "{name} has {a} {item}. {He} buys {b} more.",
    "{name} has {a} {item} and gets {b} more from {friend}.",
    "{name} picks {a} {item} on {day} and {b} {item} on {day2}.",
    "{name} has {a} {color} {item} and {b} {color2} {item}.",
    "On {day} {name} makes {a} {item}. On {day2} {he} makes {b}.",
    held_out=(
        "{friend} gives {b} {item} to {name}, who has {a} {item}.",
        "{name} finds {a} {item} at the {place} and {b} more on {day}.",
    ),
)
RATE = wordings(
    "{name} makes {a} {item} a day for {b} days.",
    "{name} makes {a} {item} each day for {b} days.",
    "For {b} days {name} makes {a} {item} a day.",
    "Every day {name} makes {a} {item}. {He} does this for {b} days.",
    "{name} picks {a} {item} per day for {b} days.",
    "{name} picks {a} {item} a day. {He} does this for {b} days.",
    held_out=(
        "{name} makes {a} {item} every day for {b} days.",
        "In {b} days {name} picks {a} {item} each day.",
    ),
)

# What then happens to it.
LOSE = wordings(
    "{He} gives {x} {item} to {friend}.",
    "{He} gives {friend} {x} {item}.",
    "{He} gives {x} of them to {friend}.",
    "{friend} takes {x} {item}.",
    "{friend} takes {x} of them.",
    "{He} loses {x} {item}.",
    "Then {he} loses {x}.",
    "{He} sells {x} of the {item}.",
    "{He} uses {x} {item}.",
    "{x} of the {item} are broken.",
    "{x} {item} are sold.",
    "Then {name} gives away {x} {item}.",
    "{name} gives {x} to {friend}.",
    held_out=(
        "Then {friend} gets {x} of the {item} from {him}.",
        "On {day2} {he} gives away {x} of them.",
        "{name} sells {x} {item} to {friend}.",
    ),
)
GAIN = wordings(
    "{He} finds {x} more {item}.",
    "{He} buys {x} more.",
    "{He} gets {x} more {item}.",
    "{friend} gives {him} {x} more {item}.",
    "{friend} gives {name} {x} {item}.",
    "Then {he} gets {x} more from {friend}.",
    "{friend} gives {x} {item} to {him}.",
    "{name} buys {x} more {item} at the {place}.",
    "Then {he} makes {x} more.",
    held_out=("On {day2} {friend} gives {him} {x} more.", "At the {place} {he} finds {x} {item}."),
)
HALVE = wordings(
    "{He} gives half of them to {friend}.",
    "{He} sells half of the {item}.",
    "Then {name} gives away half of {his} {item}.",
    "{friend} takes half of them.",
    held_out=("{friend} gets half of the {item} from {him}.",),
)

# What is asked.
HOW_MANY = wordings(
    "How many {item} does {name} have?",
    "How many {item} does {he} have now?",
    "How many {item} does {name} have in total?",
    "How many {item} does {he} have in all?",
    "How many {item} are there?",
    "What is the number of {item} now?",
    held_out=("How many {item} are there in all?", "What is {name}'s total number of {item}?"),
)
HOW_MANY_LEFT = wordings(
    "How many {item} does {name} have left?",
    "How many {item} does {he} have left?",
    "How many {item} are left?",
    "How many {item} does {name} still have?",
    "How many {item} does {he} have now?",
    "How many {item} remain?",
    held_out=("How many of the {item} are still there?", "What number of {item} does {name} have left?"),
)
SPLIT = wordings(
    "{He} puts them all into {x} {box2}. How many {item} are in each?",
    "{He} puts all of them into {x} {box2}. How many {item} are in each {abox2}?",
    "{He} shares them with {x} friends so that each gets as many. How many {item} does each friend get?",
    "{He} puts the same number into each of {x} {box2}. How many {item} does each {abox2} have?",
    "{He} shares the {item} equally among {x} friends. How many {item} does each get?",
    "The {item} are put into {x} {box2}. How many are in each?",
    held_out=(
        "{x} friends share them equally. How many {item} does each friend get?",
        "How many {item} are in each {abox2} if {he} fills {x} {box2} with them?",
    ),
)
GROUP = wordings(
    "{He} puts {x} {item} into each {abox2}. How many {box2} does {he} need?",
    "{He} puts them into {box2} of {x}. How many {box2} are there?",
    "Each {abox2} takes {x} {item}. How many {box2} does {name} fill?",
    held_out=("How many {box2} does {he} need if each has {x} {item}?",),
)

# What does not matter.
DISTRACTIONS = wordings(
    "It is {day}.",
    "{friend} likes {item2}.",
    "{name} likes the {color} ones most.",
    "{name} is {z} years old.",
    "{friend} has {z} {item2}.",
    "{name} also has {z} {item2}.",
    "{uncle} lives near the {place}.",
    "{name} goes to the {place}.",
    "The {item2} cost ${z}.",
    "The weather is good.",
    "{friend} comes home at {z}.",
    "{uncle} is {name}'s friend.",
    held_out=(
        "{friend} was born on a {day}.",
        "{name} lives near the {place} with {uncle}.",
        "{uncle} also buys {z} {item2}.",
    ),
)
