"""Stories of several quantities: comparisons, purchases, books, ages, wages."""

from __future__ import annotations

import itertools

from lopa_ray.presets.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind
from lopa_ray.presets.word_problems.wordings import wordings

TIMES = wordings(
    "{name} has {a} {item}. {friend} has {b} times as many {item} as {name}.",
    "{name} has {a} {item}. {friend} has {b} times as many.",
    "{friend} has {b} times as many {item} as {name}, and {name} has {a}.",
    "{friend} has {b} times as many {item} as {name}, who has {a} {item}.",
    held_out=("{friend} has {b} times the {item} of {name}. {name} has {a}.",),
)
MORE = wordings(
    "{name} has {a} {item}. {friend} has {b} more {item} than {name}.",
    "{name} has {a} {item}, and {friend} has {b} more than {name}.",
    "{friend} has {b} more {item} than {name}. {name} has {a}.",
    "{name} finds {a} {item}. {friend} finds {b} more than {name}.",
    held_out=("{friend} has {b} more {item} than {name}, who has {a} {item}.",),
)
FEWER = wordings(
    "{name} has {a} {item}. {friend} has {b} fewer {item} than {name}.",
    "{name} has {a} {item}, and {friend} has {b} fewer than {name}.",
    "{friend} has {b} fewer {item} than {name}. {name} has {a}.",
    held_out=("{friend} has {b} fewer {item} than {name}, who has {a} {item}.",),
)
FRIENDS = wordings("How many {item} does {friend} have?", "How many {item} are {friend}'s?")
TOGETHER = wordings(
    "How many {item} do they have together?",
    "How many {item} do {name} and {friend} have together?",
    "How many {item} do they have in total?",
    "How many {item} do the two have in all?",
    held_out=("What is the total number of {item}?",),
)
COMPARISONS = tuple(
    Kind((sentence, ask), first + rest, numbers, 0.9)
    for (sentence, first, numbers), (ask, rest) in itertools.product(
        (
            (TIMES, "<So|Now> {friend} <has|gets> [t=a*b] {item}.", {"a": FACTOR, "b": ONE_DIGIT}),
            (MORE, "<So|Now> {friend} <has|gets> [t=a+b] {item}.", {"a": NUMBER, "b": NUMBER}),
            (FEWER, "<So|Now> {friend} <has|gets> [t=a-b] {item}.", {"a": NUMBER, "b": NUMBER}),
        ),
        ((FRIENDS, ""), (TOGETHER, " <So|Together> they <have|get> [u=a+t] {item}.")),
    )
)
SEVERAL_QUANTITIES = (
    *COMPARISONS,
    Kind(
        (
            wordings(
                "How many {item} does {name} have left from {a} {box} of {b} {item} if {he} gives {c} to {friend}?",
                "If {name} has {a} {box} of {b} {item} and gives {c} to {friend}, how many {item} are left?",
                "How many {item} does {name} have left if {he} has {a} {box} with {b} {item} each and sells {c}?",
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
                "How many {item} are in {a} {box} of {b} {item}?",
                "How many {item} are there in {a} {box} with {b} {item} each?",
                "If there are {b} {item} in each of {a} {box}, how many {item} are there in total?",
                held_out=("If each {abox} has {b} {item}, how many {item} are in {a} {box}?",),
            ),
        ),
        "<So|Now> there are [t=a*b] {item}.",
        {"a": ONE_DIGIT, "b": FACTOR},
        0.5,
    ),
    Kind(
        (
            wordings(
                "{name} buys {a} {item} for ${b} each. How much does {he} pay?",
                "{name} buys {a} {item} at ${b} each. How much does {name} pay in total?",
                "One {one} costs ${b}. How much do {a} {item} cost?",
                "Each {one} costs ${b}. {name} buys {a} {item}. How much does {he} pay?",
                "How much does {name} pay for {a} {item} that cost ${b} each?",
                held_out=("The {item} cost ${b} each. How much does {name} pay for {a} of them?",),
            ),
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b].",
        {"a": ONE_DIGIT, "b": FACTOR},
    ),
    Kind(
        (
            wordings(
                "{name} buys {a} {item} for ${b} each and {c} {item2} for ${d} each. How much does {he} pay?",
                "One {one} costs ${b} and one of the {item2} costs ${d}. "
                "How much does {name} pay for {a} {item} and {c} {item2}?",
                "{name} buys {a} {item} at ${b} each. {He} also buys {c} {item2} at ${d} each. "
                "How much does {name} pay in total?",
                "{name} buys {a} {item} and {c} {item2}. Each {one} costs ${b}, and the {item2} cost ${d} each. "
                "How much does {he} pay in all?",
                held_out=(
                    "How much do {a} {item} for ${b} each and {c} {item2} for ${d} each cost in total?",
                    "The {item} cost ${b} each. The {item2} cost ${d} each. "
                    "{name} buys {a} {item} and {c} {item2}. How much does {he} pay?",
                ),
            ),
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b]. <Then|So> {he} <pays|gives> $[u=c*d]. "
        "<So|Then> {he} <pays|gives> $[v=t+u].",
        {"a": ONE_DIGIT, "b": FACTOR, "c": ONE_DIGIT, "d": FACTOR},
        1.5,
    ),
    Kind(
        (
            wordings(
                "{name} has ${c}. {He} buys {a} {item} for ${b} each. How much money does {he} have left?",
                "{name} buys {a} {item} at ${b} each and pays with ${c}. How much money does {name} have left?",
                "{name} has ${c} and buys {a} {item}. Each {one} costs ${b}. How much money is left?",
                "{name} goes to the {place} with ${c}. {He} buys {a} {item} at ${b} each. "
                "How much money does {he} still have?",
                "One {one} costs ${b}. {name} buys {a} {item} and pays with ${c}. How much does {he} get back?",
                held_out=(
                    "{name} pays with ${c} for {a} {item} that cost ${b} each. How much money does {he} get back?",
                    "{name} has ${c}. The {item} cost ${b} each and {he} buys {a}. How much money is left?",
                ),
            ),
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b]. <Then|So> {he} <has|gets> $[u=c-t] left.",
        {"a": ONE_DIGIT, "b": FACTOR, "c": NUMBER},
        1.5,
    ),
    Kind(
        (
            wordings(
                "{name} finds {a} {item} on {day}, {b} more {item} on {day2} than on {day}. "
                "How many {item} does {he} find on both days?",
                "On {day} {name} finds {a} {item}. On {day2} {he} finds {b} more than on {day}. "
                "How many {item} does {he} find on both days?",
                "{name} sells {a} {item} on {day} and {b} more than that on {day2}. "
                "How many {item} does {name} sell in total?",
                held_out=(
                    "{name} finds {a} {item} on {day}. On {day2} {he} finds {b} more than that. "
                    "How many {item} does {he} have in all?",
                ),
            ),
        ),
        "<So|Now> {name} <finds|gets> [t=a+b] {item}. <So|Then> {he} <finds|gets> [u=a+t] {item}.",
        {"a": NUMBER, "b": NUMBER},
    ),
    Kind(
        (
            wordings(
                "{name} sells {a} {item} for ${b} each and buys {c} {box} for ${d} each. "
                "How much money does {he} make?",
                "How much money does {name} make if {he} sells {a} {item} for ${b} each "
                "and buys {c} {box} for ${d} each?",
                "{name} buys {c} {box} at ${d} each. Then {he} sells {a} {item} at ${b} each. "
                "How much money does {name} make?",
                held_out=(
                    "{name} pays ${d} for each of {c} {box}, and gets ${b} for each of {a} {item}. "
                    "How much money does {he} make?",
                ),
            ),
        ),
        "<So|Now> {name} <makes|gets> $[t=a*b]. <Then|So> {he} <pays|gives> $[u=c*d]. "
        "<Then|So> {he} <makes|gets> $[v=t-u].",
        {"a": ONE_DIGIT, "b": FACTOR, "c": ONE_DIGIT, "d": FACTOR},
    ),
    Kind(
        (
            wordings(
                "{name} reads {a} pages on {day} and {b} pages on {day2}. The book has {c} pages. "
                "How many days does {he} need for the rest at {d} pages a day?",
                "A book has {c} pages. {name} reads {a} pages on {day}, {b} pages on {day2} "
                "and the rest at {d} pages a day. How many days does {he} need for the rest?",
                "{name} has a book of {c} pages. {He} reads {a} pages on {day} and {b} on {day2}, "
                "then {d} pages each day. How many days does the rest take?",
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
                "{name} reads {a} pages a day for {b} days. The book has {c} pages. How many pages are left?",
                "A book has {c} pages. {name} reads {a} pages each day for {b} days. "
                "How many pages does {he} have left?",
                "For {b} days {name} reads {a} pages a day in a book of {c} pages. How many pages are left to read?",
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
                "{name} has {a} {box} with {b} {item} in each. {friend} has {c} {box} with {d} {item} in each.",
                "There are {b} {item} in each of the {a} {box} of {name} and {d} {item} in each of the {c} {box} "
                "of {friend}.",
                "{name} has {a} {box} of {b} {item} and {friend} has {c} {box} of {d} {item}.",
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
                "They give {e} {item} to {uncle}. How many {item} are left?",
                "There are {b} {item} in each of the {a} {box} of {name} and {d} {item} in each of the {c} {box} "
                "of {friend}. {uncle} takes {e} {item}. How many {item} are left?",
                "{name} has {a} {box} of {b} {item} and {friend} has {c} {box} of {d} {item}. "
                "{uncle} gets {e} {item} from them. How many {item} do they still have?",
            ),
        ),
        "<So|Now> {name} <has|gets> [t=a*b] {item}. <Then|So> {friend} <has|gets> [u=c*d] {item}. "
        "<So|Together> they <have|get> [v=t+u] {item}. <Then|So> they <have|get> [w=v-e] {item}.",
        {"a": ONE_DIGIT, "b": ONE_DIGIT, "c": ONE_DIGIT, "d": ONE_DIGIT, "e": NUMBER},
        4.0,
    ),
    Kind(
        (
            wordings(
                "{name} is {a} years old. {friend} is {b} times as old. {uncle} is {c} years older than {friend}. "
                "How old is {uncle}?",
                "{uncle} is {c} years older than {friend}. {friend} is {b} times as old as {name}. "
                "{name} is {a} years old. How old is {uncle}?",
                "{friend} is {b} times as old as {name}, who is {a}. {uncle} is {c} years older than {friend}. "
                "How old is {uncle}?",
            ),
        ),
        "<So|Now> {friend} is [t=a*b] years old. <Then|So> {uncle} is [u=t+c] years old.",
        {"a": ONE_DIGIT, "b": ONE_DIGIT, "c": NUMBER},
    ),
    Kind(
        (
            wordings(
                "{name} is {a} years old. {friend} is {b} years older. How old is {friend}?",
                "{friend} is {b} years older than {name}, who is {a}. How old is {friend}?",
                "{name} is {a}. How old is {friend} if {friend} is {b} years older than {name}?",
                held_out=(
                    "{friend} is {b} years older than {name}. {name} is {a} years old. How old is {friend}?",
                ),
            ),
        ),
        "<So|Now> {friend} is [t=a+b] years old.",
        {"a": NUMBER, "b": ONE_DIGIT},
        0.5,
    ),
    Kind(
        (
            wordings(
                "{name} saves ${a} a week for {b} weeks and gets ${c} from {friend}.",
                "{friend} gives {name} ${c}. {name} also saves ${a} a week for {b} weeks.",
                "{name} has ${c} and saves ${a} each week for {b} weeks.",
                held_out=("For {b} weeks {name} saves ${a} a week. Then {he} gets ${c} from {friend}.",),
            ),
            wordings(
                "How many {item} can {he} buy for ${d} each?",
                "How many {item} at ${d} each can {name} buy?",
                "Each {one} costs ${d}. How many {item} can {he} buy?",
            ),
        ),
        "<So|Now> {name} <saves|makes> $[t=a*b]. <Then|So> {he} <has|gets> $[u=t+c]. "
        "<Then|So> {he} can <buy|get> [v=u/d] {item}.",
        {"a": FACTOR, "b": ONE_DIGIT, "c": NUMBER, "d": ONE_DIGIT},
    ),
    Kind(
        (
            wordings(
                "{name} gets ${a} an hour and works {b} hours.",
                "{name} works {b} hours for ${a} an hour.",
                "{name} makes ${a} per hour. {He} works for {b} hours.",
                held_out=("{name} works for {b} hours and gets ${a} for each hour.",),
            ),
            wordings(
                "How much money does {he} make?",
                "How much does {name} make in total?",
                "How much money does {name} get?",
            ),
        ),
        "<So|Now> {name} <makes|gets> $[t=a*b].",
        {"a": FACTOR, "b": ONE_DIGIT},
    ),
)
