"""Stories of several quantities: what two people have, what a question tells at once, books, ways, groups."""

from __future__ import annotations

from lopa_lab.word_problems.comparisons import TOGETHER
from lopa_lab.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind
from lopa_lab.word_problems.wordings import COUNT, HOW_MANY_LEFT, wordings

SEVERAL_QUANTITIES = (
    Kind(
        (
            wordings(
                "How many {item} does {name} have left from {a} {box} of {b} {item} if {he} gives {c} to {friend}?",
                "If {name} has {a} {box} of {b} {item} and <gives {c} to {friend}|sells {c}|loses {c}>, "
                "how many {item} <are left|does {he} have left>?",
                "How many {item} does {name} have left if {he} has {a} {box} with {b} {item} each "
                "and <sells|uses> {c}?",
                held_out=(
                    "If {friend} takes {c} from {name}'s {a} {box} of {b} {item}, how many {item} are left?",
                ),
            ),
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {he} <has|gets> [u=t-c] {item}.",
        {"a": ONE_DIGIT, "b": FACTOR, "c": NUMBER},
    ),
    Kind(
        (
            wordings(
                "How many {item} are <there |>in {a} {box} <of {b} {item}|with {b} {item} each>?",
                "If there are {b} {item} in <each of {a} {box}|each {abox}>, how many {item} are there in {a} {box}?",
                "There are {a} {box} <of {b} {item}|with {b} {item} in each>. How many {item} are there< in total|>?",
                "<Each|One> {abox} has {b} {item}. How many {item} <are in {a} {box}|do {a} {box} have>?",
                held_out=("If each {abox} has {b} {item}, how many {item} are in {a} {box}?",),
            ),
        ),
        "<So|Now> there are [t=a*b] {item}.",
        {"a": ONE_DIGIT, "b": FACTOR},
        0.7,
    ),
    Kind(
        (
            wordings(
                "If {name} has {a} {item} and <gives {b} to {friend}|sells {b}|loses {b}|eats {b}>, "
                "how many< {item}|> <are left|does {he} have left>?",
                "How many {item} <does {name} have left|are left> if {he} <has|had> {a}< {item}|> "
                "and <sells|loses|eats> {b}< of them|>?",
                "<There are|A box has> {a} {item}. {name} <takes|eats|uses|sells> {b}< of them| {item}|>. "
                "How many< {item}|> are left?",
                held_out=("If {friend} takes {b} of {name}'s {a} {item}, how many remain?",),
            ),
        ),
        "<So|Now> {name} <has|gets> [t=a-b] {item}.",
        {"a": NUMBER, "b": NUMBER},
        0.7,
    ),
    Kind(
        (
            COUNT,
            wordings(
                "{He} <gives|gave|sells> {b} {item} to each of {c} friends.",
                "{He} <gives|gave> {b}< {item}| of them|> to each of {his} {c} <friends|children|teachers>.",
                "{c} friends get {b}< {item}| of them|> each.",
                "{He} has {c} friends and <gives|sends> {b}< {item}|> to each of them.",
                held_out=("Each of {his} {c} friends gets {b} {item} from {him}.",),
            ),
            HOW_MANY_LEFT,
        ),
        "<So|Now> {name} <gives|sells> [t=c*b] {item}. <Then|So> {he} <has|gets> [u=a-t] {item}.",
        {"a": NUMBER, "b": ONE_DIGIT, "c": ONE_DIGIT},
    ),
    Kind(
        (
            wordings(
                "There are {a} {item} and {b} {item2} <in a {abox}|at the {place}|on a table>.",
                "{name} <has|buys|finds|sees> {a} {item} and {b} {item2}.",
                "{name} has {a} {item}. {He} also has {b} {item2}.",
                held_out=("{a} {item} and {b} {item2} are at the {place}.",),
            ),
            wordings(
                "How many <things|items> are <there|there in total|that>?",
                "How many <things|items> are there altogether?",
            ),
        ),
        "<So|Now> there are [t=a+b] things.",
        {"a": NUMBER, "b": NUMBER},
        0.6,
        distracted=False,
    ),
    Kind(
        (
            wordings(
                "There are {a} boys and {b} girls <in a class|in a room|on a bus|at the {place}>.",
                "There are {a} men and {b} women <in a room|on a bus|at the {place}>.",
                "A <class|school|team|group> has {a} <boys and {b} girls|girls and {b} boys|men and {b} women>.",
                held_out=("{a} boys and {b} girls go to the {place}.",),
            ),
            wordings(
                "How many people are there< in total| altogether|>?",
                "How many people are that<| in all>?",
            ),
        ),
        "<So|Now> there are [t=a+b] people.",
        {"a": NUMBER, "b": NUMBER},
        0.5,
        distracted=False,
    ),
    *(
        Kind(
            (way, far),
            "<So|Now> that is [t=a*b] miles.",
            {"a": FACTOR, "b": ONE_DIGIT},
            0.3,
        )
        for way, far in (
            (
                wordings(
                    "{name} <drives|walks|runs|travels> {a} miles <an|per|each> hour for {b} hours.",
                    "{name} <walks|runs|rides> {a} miles <a|each|per> day for {b} days.",
                    held_out=("For {b} hours {name} drives {a} miles an hour.",),
                ),
                wordings(
                    "How far is that< in total|>?",
                    "How many miles are that< in total|>?",
                    "How far does <{he}|{name}> <go|travel>< in total|>?",
                    "How many miles does <{he}|{name}> <go|travel>?",
                ),
            ),
            (
                wordings(
                    "A <car|train|bus> <goes|drives|travels> <{a} miles an hour|at {a} miles per hour> for {b} hours.",
                    held_out=("For {b} hours a train goes {a} miles per hour.",),
                ),
                wordings(
                    "How far is that< in total|>?",
                    "How far does it <go|travel|drive>< in total|>?",
                    "How many miles does it <go|travel|drive>?",
                ),
            ),
        )
    ),
    Kind(
        (
            wordings(
                "{name} reads {a} pages on {day} and {b} pages on {day2}. The book has {c} pages. "
                "How many days does {he} need for the rest at {d} pages a day?",
                "A book has {c} pages. {name} <reads|read> {a} pages on {day}, {b} pages on {day2} "
                "and the rest at {d} pages a day. How many days does {he} need for the rest?",
                "{name} has a book <of|with> {c} pages. {He} reads {a} pages on {day} and {b} on {day2}, "
                "then {d} pages <each|a> day. How many days does the rest take?",
                held_out=(
                    "The book of {name} has {c} pages. After {a} pages on {day} and {b} pages on {day2} {he} reads "
                    "{d} pages a day. How many days does {he} need for the rest?",
                ),
            ),
        ),
        "<So|Now> {name} <reads|has> [t=a+b] pages. <Then|So> {he} <needs|has> [u=c-t] pages. "
        "<Then|So> {he} <needs|takes> [v=u/d] days.",
        {"a": NUMBER, "b": NUMBER, "c": NUMBER, "d": ONE_DIGIT},
    ),
    Kind(
        (
            wordings(
                "{name} reads {a} pages a day for {b} days. The book has {c} pages. "
                "How many pages <are left|are left to read|does {he} have left>?",
                "A book has {c} pages. {name} <reads|read> {a} pages <each|a> day for {b} days. "
                "How many pages <does {he} have left|are left>?",
                "For {b} days {name} reads {a} pages a day in a book of {c} pages. How many pages are left< to read|>?",
                held_out=(
                    "{name}'s book has {c} pages. {He} reads {a} pages every day for {b} days. How many pages remain?",
                ),
            ),
        ),
        "<So|Now> {name} <reads|has> [t=a*b] pages. <Then|So> {he} <needs|has> [u=c-t] pages left.",
        {"a": FACTOR, "b": ONE_DIGIT, "c": NUMBER},
    ),
    Kind(
        (
            wordings(
                "{name} <has|buys> {a} {box} with {b} {item} in each. "
                "{friend} <has|buys> {c} {box} with {d} {item} <in each|each>.",
                "There are {b} {item} in each of the {a} {box} of {name} and {d} {item} in each of the {c} {box} "
                "of {friend}.",
                "{name} <has|buys|gets> {a} {box} of {b} {item} and {friend} <has|buys|gets> {c} {box} of {d} {item}.",
                held_out=(
                    "{name} fills {a} {box} with {b} {item} each, {friend} fills {c} {box} with {d} {item} each.",
                ),
            ),
            TOGETHER,
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {friend} <has|gets> [u=c*d] {item}. "
        "<So|Together> they <have|get> [v=t+u] {item}.",
        {"a": ONE_DIGIT, "b": FACTOR, "c": ONE_DIGIT, "d": FACTOR},
    ),
    Kind(
        (
            wordings(
                "{name} has {a} {box} with {b} {item} in each. {friend} has {c} {box} with {d} {item} in each. "
                "They <give|sell> {e} {item} to {uncle}. How many {item} are left?",
                "There are {b} {item} in each of the {a} {box} of {name} and {d} {item} in each of the {c} {box} "
                "of {friend}. {uncle} <takes|buys> {e} {item}. How many {item} are left?",
                "{name} has {a} {box} of {b} {item} and {friend} has {c} {box} of {d} {item}. "
                "{uncle} gets {e} {item} from them. How many {item} do they still have?",
                held_out=(
                    "{name} buys {a} {box} with {b} {item} each, {friend} buys {c} {box} with {d} {item} each. "
                    "{uncle} takes {e} of them. How many {item} do they have left?",
                ),
            ),
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {friend} <has|gets> [u=c*d] {item}. "
        "<So|Together> they <have|get> [v=t+u] {item}. <Then|So> they <have|get> [w=v-e] {item}.",
        {"a": ONE_DIGIT, "b": ONE_DIGIT, "c": ONE_DIGIT, "d": ONE_DIGIT, "e": NUMBER},
        4.0,
    ),
)
