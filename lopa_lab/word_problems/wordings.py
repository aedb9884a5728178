"""The words of the problems: names, things, and the wordings of each sentence of a story.

A sentence has several wordings. Training problems use `trained` alone; `held_out` ones stand only in problems
that ask whether a model understands wordings that it never saw.

Placeholders: `{name}`, `{friend}`, `{uncle}`, `{other}` are people, `{he}`, `{him}`, `{his}`, `{He}` the first;
`{item}`, `{item2}`, `{item3}` are things and `{one}` is one of the first; `{box}` and `{box2}` are containers, and
`{abox}` and `{abox2}` one of them; `{a}` to `{g}` are numbers, and `{z}` is one that does not matter; `{x}` is the
number of an event, which gets a letter where the story is put together; `{aunit}` is a unit of time as in `a day`. The
names of the others say what they are. `<gives|gave>` is one of these words, by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = {
    "he": (
        "Tom", "Ben", "Sam", "Max", "Leo", "Omar", "Raj", "Jack", "John", "Paul", "Adam", "Luke", "Noah", "Ali",
        "Carlos", "Peter", "David", "James", "Tim", "Mark", "Bob", "Alex", "Mike", "Dan", "Josh", "Henry", "Ken",
        "George", "Ryan", "Kevin", "Steve",
    ),
    "she": (
        "Anna", "Mia", "Zoe", "Lily", "Emma", "Nina", "Sara", "Kate", "Maria", "Julia", "Amy", "Lucy", "Ella",
        "Rosa", "Eva", "Jane", "Lisa", "Alice", "Sophie", "Mary", "Sarah", "Laura", "Olivia", "Emily", "Grace",
        "Janet", "Helen", "Carol", "Natalia", "Wendy",
    ),
}  # fmt: skip
SYLLABLES = (
    "ba", "be", "da", "de", "fa", "fi", "ga", "jo", "ka", "ki", "la", "lo", "ma", "mi", "na", "no", "pa", "pe",
    "ra", "ri", "sa", "so", "ta", "ti", "va", "wa", "yu", "za",
)  # fmt: skip
"""The syllables of names and things that no list has, so that a model learns to copy words that it does not know."""
ITEMS = (
    "apples", "books", "cards", "coins", "cookies", "eggs", "pens", "shells", "stamps", "stickers", "pencils", "toys",
    "balls", "marbles", "oranges", "flowers", "candles", "cakes", "cups", "plates", "bananas", "lemons", "balloons",
    "photos", "beads", "buttons", "candies", "crayons", "chairs", "bottles", "pears", "plants", "tickets", "trees",
    "fish", "dogs", "cats", "bikes", "cars", "hats", "shirts", "roses", "nuts", "muffins", "puzzles", "games",
    "peaches", "tomatoes", "potatoes", "carrots", "pizzas", "sandwiches", "cupcakes", "chocolates", "donuts", "clips",
    "stones", "dolls", "chickens", "cows", "horses", "birds", "rabbits", "notebooks", "erasers", "rings", "keys",
    "magazines", "letters", "songs", "goats", "ducks",
)  # fmt: skip
SINGULAR = {
    "candies": "candy", "fish": "fish", "boxes": "box", "shelves": "shelf", "peaches": "peach", "tomatoes": "tomato",
    "potatoes": "potato", "sandwiches": "sandwich",
}  # fmt: skip
"""The singulars of words that do not form their plural by an `s` alone."""
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
    "groups",
    "bowls",
    "cartons",
    "tables",
    "rooms",
    "teams",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = {"day": "a day", "hour": "an hour", "week": "a week", "month": "a month"}
"""The units of time, and how a rate names them."""
COLORS = ("red", "blue", "green", "yellow", "black", "white")
MONTHS = ("January", "March", "April", "May", "June", "July", "October")
PLACES = ("park", "shop", "school", "market", "beach", "library", "farm", "zoo")


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
    "{name} <has|had|buys|bought|gets|finds|found|picks|collects|makes|bakes|starts with|begins with> {a} {item}.",
    "There <are|were> {a} {item} <on {name}'s table|in {name}'s room|in {name}'s shop>.",
    "There <are|were> {a} {item} in {name}'s {abox}.",
    "{name} <has|had|buys> a <box|bag|jar> <with|of> {a} {item}.",
    "{name} <gets|got> {a} {item} from {uncle}.",
    "{uncle} <gives|gave> {name} {a} {item}.",
    "At first {name} <has|had> {a} {item}.",
    "{name}'s <box|bag|room|shop> has {a} {item}.",
    "{name} <picks|buys|finds|gets> {a} {item} at the {place}.",
    "<Today|This week|One day> {name} <makes|buys|finds|picks> {a} {item}.",
    held_out=(
        "On {day} {name} has {a} {item}.",
        "{name} owns {a} {item}.",
        "In the box of {name} there are {a} {item}.",
    ),
)
PRODUCT = wordings(
    "{name} <has|had|buys|bought|gets|finds|carries> {a} {box} with {b} {item} <in each|each|in each {abox}>.",
    "{name} <has|had|buys|bought|gets|finds> {a} {box} of {b} {item}.",
    "{name} <has|had|buys|finds> {a} {box}. There are {b} {item} in <each|each {abox}|each of them|every {abox}>.",
    "{name} <has|had|buys|gets> {a} {box}. Each <{abox} has|one has|of them has|has|{abox} holds> {b} {item}.",
    "{name} <has|had|buys|makes> {a} {box} and each {abox} <has|holds> {b} {item}< in it|>.",
    "{name} <buys|bought|has|gets> {a} {box} of {item} with {b}< {item}|> in <each|each {abox}|each of them>.",
    "{name} <buys|bought|has|gets> {a} {box} of {item}. There are {b}< {item}|> in <each|each {abox}|every {abox}>.",
    "{name} <buys|has|finds> {a} {box} of {item}. Each <{abox} has|one has|{abox} holds> {b}< {item}|>.",
    "{name} <fills|packs|makes> {a} {box} with {b} {item} each.",
    "There <are|were> {b} {item} in each of {name}'s {a} {box}.",
    "There are {a} {box} in {name}'s <room|shop|house>. <Each|Every> {abox} has {b} {item}.",
    "Each of {name}'s {a} {box} <has|holds|contains> {b} {item}.",
    "{name} <puts|packs> {b} {item} <into|in> each of {a} {box}.",
    "<Each|One> {abox} has {b} {item}. {name} <has|buys> {a} {box}.",
    held_out=(
        "There are {a} {box} on {name}'s table, with {b} {item} in each.",
        "{name} gets {a} {box} from {uncle}. Every {abox} holds {b} {item}.",
        "In each of the {a} {box} that {name} has there are {b} {item}.",
    ),
)
SUM = wordings(
    "{name} <has|had|buys|picks> {a} {item} and <finds|buys|gets|makes> {b} more< {item}|>.",
    "{name} <has|had> {a} {item}. {He} <buys|bought|finds|found|gets|makes> {b} more< {item}|>.",
    "{name} <has|had> {a} {item} and <gets|got> {b}< more|> from {friend}.",
    "{name} <has|had> {a} {item}. {friend} <gives|gave> <{him}|{name}> {b}< more| {item}>.",
    "{name} <picks|finds|buys|makes|bakes> {a} {item} on {day} and {b}< {item}| more|> on {day2}.",
    "{name} <has|had|buys|finds> {a} {color} {item} and {b} {color2} {item}.",
    "There are {a} {color} {item} and {b} {color2} {item} <in {name}'s room|on {name}'s table>.",
    "{name} has {a} {item} in one {abox} and {b}< {item}|> in <another|the other>.",
    "On {day} {name} <makes|finds|buys|picks> {a} {item}. On {day2} {he} <makes|finds|buys|picks> {b}< more|>.",
    "{name} <gets|got> {a} {item} from {friend} and {b}< {item}|> from {uncle}.",
    held_out=(
        "{friend} gives {b} {item} to {name}, who has {a} {item}.",
        "{name} finds {a} {item} at the {place} and {b} more on {day}.",
    ),
)
DIFFERENCE = wordings(
    "{name} <has|had> {a} {item} and <gives|gave> {b}< {item}| of them|> to {friend}.",
    "{name} <has|had|buys|picks> {a} {item} <and|but> <loses|sells|eats|uses|breaks> {b}< of them|>.",
    "{name} <had|bought|found> {a} {item} <and|but> <lost|sold|ate|used> {b}< of them|>.",
    "{name} <has|had> {a} {item}, but {friend} <takes|took> {b}< of them|>.",
    "<Of|From> {name}'s {a} {item}, {b} are <broken|sold|gone>.",
    "{name} <has|had> {a} {item} and keeps all but {b}< of them|>.",
    held_out=(
        "From {a} {item} {name} keeps all but {b}.",
        "{friend} gets {b} of the {a} {item} that {name} has.",
    ),
)
RATE = wordings(
    "{name} <makes|picks|finds|buys|bakes|collects> {a} {item} <{aunit}|per {unit}|each {unit}> for {b} {units}.",
    "For {b} {units} {name} <makes|picks|buys|finds> {a} {item} <{aunit}|each {unit}>.",
    "<Every|Each> {unit} {name} <makes|picks|finds|buys> {a} {item}. {He} does this for {b} {units}.",
    "{name} <picks|makes|buys|finds> {a} {item} {aunit}. {He} does this for {b} {units}.",
    "{name} <gets|collects> {a} {item} <{aunit}|per {unit}> for {b} {units}.",
    held_out=(
        "{name} makes {a} {item} every day for {b} days.",
        "In {b} days {name} picks {a} {item} each day.",
    ),
)

# What then happens to it.
LOSE = wordings(
    "{He} <gives|gave> {x} <{item}|of them|of the {item}> to {friend}.",
    "{He} <gives|gave|sends> {friend} {x}< {item}| of them| of the {item}|>.",
    "{friend} <takes|took|borrows|steals> {x} <{item}|of them|of the {item}>.",
    "{He} <loses|sells|uses|eats|breaks|lost|sold|used|ate> {x}< {item}| of them| of the {item}|>.",
    "<Then|Later|Now> {he} <loses|sells|eats|uses|breaks> {x}< {item}| of them|>.",
    "{He} throws {x}< {item}| of them|> away.",
    "{x} <of the {item}|{item}|of them> <are|were> <broken|sold|lost|eaten|given away>.",
    "<Then|Later> {name} <gives|gave> away {x}< {item}| of them|>.",
    "<Then|Later|After that> {he} <gives|gave> {x}< {item}| of them|> to <{friend}|{uncle}>.",
    "{name} <gives|gave> {x}< {item}|> to {friend}.",
    held_out=(
        "Then {friend} gets {x} of the {item} from {him}.",
        "On {day2} {he} gives away {x} of them.",
        "{name} sells {x} {item} to {friend}.",
    ),
)
GAIN = wordings(
    "{He} <finds|buys|gets|makes|picks|found|bought|got> {x} <more|more {item}|other {item}>.",
    "{friend} <gives|gave|sends> <{him}|{name}> {x} <more {item}|{item}|more|others>.",
    "<Then|Later|After that> {he} <gets|buys|finds|makes> {x} more< {item}|>< from {friend}|>.",
    "{friend} <gives|gave|brings> {x}< more|> {item} to <{him}|{name}>.",
    "{name} <buys|finds|gets|bought> {x} more {item} at the {place}.",
    "{He} <gets|got|buys> {x} <more|{item}|more {item}> from <{friend}|{uncle}>.",
    "{x} <more|new> {item} <come|are added>.",
    held_out=("On {day2} {friend} gives {him} {x} more.", "At the {place} {he} finds {x} {item}."),
)
HALVE = wordings(
    "{He} <gives|gave> half of <them|the {item}|{his} {item}> to {friend}.",
    "{He} <sells|loses|uses|eats|sold> half of <them|the {item}|{his} {item}>.",
    "<Then|Later> {name} gives away half of <them|the {item}|{his} {item}>.",
    "{friend} <takes|took|buys> half of <them|the {item}>.",
    "Half of <them|the {item}> are <sold|broken|lost>.",
    held_out=("{friend} gets half of the {item} from {him}.",),
)

# What is asked.
HOW_MANY = wordings(
    "How many {item} does <{name}|{he}> have< now| in total| in all| altogether|>?",
    "How many does <{name}|{he}> have< now| in total| in all| altogether|>?",
    "How many {item} are there< now| in total| altogether|>?",
    "What is the number of {item} now?",
    "<Now how|So how> many {item} does <{name}|{he}> have?",
    held_out=("How many {item} are there in all?", "What is {name}'s total number of {item}?"),
)
HOW_MANY_NOW = wordings(
    "How many< {item}|> does <{name}|{he}> have< now|>?",
    "How many {item} are there now?",
    "What is the number of {item} now?",
    "<Now how|So how> many {item} does <{name}|{he}> have?",
    held_out=("What number of {item} does {he} have now?",),
)
"""Where something was given away or lost before: nothing is asked in total."""
HOW_MANY_LEFT = wordings(
    "How many {item} does <{name}|{he}> <have left|still have|have now>?",
    "How many does <{name}|{he}> <have left|still have|have now>?",
    "How many {item} <are left|remain|are there now>?",
    "How many are <left|there now>?",
    "How many {item} does <{name}|{he}> have in the end?",
    held_out=("How many of the {item} are still there?", "What number of {item} does {name} have left?"),
)
SPLIT = wordings(
    "{He} puts <them all|all of them|them> into {x} {box2}. How many {item} are in <each|each {abox2}>?",
    "{He} <shares|divides> <them|the {item}> <equally |>among {x} <friends|children>. "
    "How many< {item}|> does each <get|friend get|child get>?",
    "{He} puts the same number into each of {x} {box2}. How many {item} does each {abox2} have?",
    "The {item} are <put into|divided among|packed into> {x} {box2}. How many< {item}|> are in <each|each {abox2}>?",
    "{He} <splits|divides> <them|the {item}> into {x} <equal |>{box2}. How many {item} are in <each|each {abox2}>?",
    held_out=(
        "{x} friends share them equally. How many {item} does each friend get?",
        "How many {item} are in each {abox2} if {he} fills {x} {box2} with them?",
    ),
)
GROUP = wordings(
    "{He} puts {x}< {item}|> <into|in> each {abox2}. How many {box2} <does {he} need|are there|does {he} fill>?",
    "{He} <puts|packs> them into {box2} of {x}< {item}|>. How many {box2} <are there|does {he} need|does {he} get>?",
    "Each {abox2} <takes|holds> {x}< {item}|>. How many {box2} does <{name}|{he}> <fill|need>?",
    held_out=("How many {box2} does {he} need if each has {x} {item}?",),
)

# What does not matter.
DISTRACTIONS = (
    "<It is|Today is> {day}.",
    "<{friend}|{uncle}|{other}> <likes|wants|does not like> {item3}.",
    "{name} likes the {color} ones most.",
    "{other} is {z} years old.",
    "{other} <has|bought|sees> {z} {item3}.",
    "{uncle} lives near the {place}.",
    "<{name}|{friend}|{other}> <goes to|is at|likes> the {place}.",
    "<The {item3} cost|{other} has a book for> ${z}.",
    "The weather is <good|bad>.",
    "{friend} comes home at {z}.",
    "<{uncle}|{other}> is {name}'s friend.",
    "The {place} is {color}.",
)
