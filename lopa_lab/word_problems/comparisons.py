"""Stories that compare two quantities: times as many, more, fewer, half as many, older."""

from __future__ import annotations

import itertools

from lopa_lab.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind
from lopa_lab.word_problems.wordings import wordings


def with_verbs(*texts: str) -> tuple[str, ...]:
    """The texts with one verb after the other for `DO`, `DOES` and `DID`: what is asked is what was told."""
    verbs = (("sell", "sells", "sold"), ("find", "finds", "found"), ("buy", "buys", "bought"))
    return tuple(
        text.replace("DOES", does).replace("DID", did).replace("DO", do)
        for text in texts
        for do, does, did in verbs
    )


TIMES = wordings(
    "{name} <has|had|finds|buys> {a} {item}. {friend} <has|had|finds|buys> {b} times as many< {item}|>< as {name}|>.",
    "{friend} has {b} times as many {item} as {name}<, and {name} has {a}|. {name} has {a}|. {name} has {a} {item}>.",
    "{friend} has {b} times as many {item} as {name}, who has {a}< {item}|>.",
    "{name} has {a} {item}<, and|, while|, but> {friend} has {b} times as many< {item}|>.",
    held_out=("{friend} has {b} times the {item} of {name}. {name} has {a}.",),
)
TWICE = wordings(
    "{name} <has|had|finds|buys> {a} {item}. {friend} <has|had|finds|buys> twice as many< {item}|>< as {name}|>.",
    "{friend} has twice as many {item} as {name}<, and {name} has {a}|. {name} has {a}|. {name} has {a} {item}>.",
    "{friend} has twice as many {item} as {name}, who has {a}< {item}|>.",
    held_out=("{friend} has twice the number of {item} that {name} has. {name} has {a}.",),
)
HALF = wordings(
    "{name} <has|had|finds|buys> {a} {item}. {friend} <has|had|finds|buys> half as many< {item}|>< as {name}|>.",
    "{friend} has half as many {item} as {name}<, and {name} has {a}|. {name} has {a}|. {name} has {a} {item}>.",
    "{friend} has half as many {item} as {name}, who has {a}< {item}|>.",
    held_out=("{friend} has half the number of {item} that {name} has. {name} has {a}.",),
)
MORE = wordings(
    "{name} <has|had|buys> {a} {item}. {friend} <has|had|buys> {b} more< {item}|> than {name}.",
    "{name} has {a} {item}<, and|, while|, but> {friend} has {b} more< than {name}|>.",
    "{friend} has {b} more {item} than {name}. {name} has {a}< {item}|>.",
    "{name} <finds|found|makes> {a} {item}. {friend} <finds|found|makes> {b} more than {name}.",
    held_out=("{friend} has {b} more {item} than {name}, who has {a} {item}.",),
)
FEWER = wordings(
    "{name} <has|had|buys> {a} {item}. {friend} <has|had|buys> {b} <fewer|less>< {item}|>< than {name}|>.",
    "{name} has {a} {item}<, and|, while|, but> {friend} has {b} <fewer|less>< than {name}|>.",
    "{friend} has {b} <fewer|less> {item} than {name}. {name} has {a}< {item}|>.",
    held_out=("{friend} has {b} fewer {item} than {name}, who has {a} {item}.",),
)
FRIENDS = wordings("How many {item} does {friend} have< now|>?", "How many does {friend} have?")
TOGETHER = wordings(
    "How many {item} do <they|{name} and {friend}|the two> have <together|in total|in all|altogether>?",
    "How many do <they|{name} and {friend}> have <together|in total|in all|altogether>?",
    "How many {item} are there <together|altogether>?",
    held_out=("What is the total number of {item}?",),
)
COMPARED = (
    (TIMES, "<So|Now> {friend} <has|gets> [t=a*b] {item}.", {"a": FACTOR, "b": ONE_DIGIT}),
    (TWICE, "<So|Now> {friend} <has|gets> [t=a*2] {item}.", {"a": NUMBER}),
    (HALF, "<So|Now> {friend} <has|gets> [t=a/2] {item}.", {"a": NUMBER}),
    (MORE, "<So|Now> {friend} <has|gets> [t=a+b] {item}.", {"a": NUMBER, "b": NUMBER}),
    (FEWER, "<So|Now> {friend} <has|gets> [t=a-b] {item}.", {"a": NUMBER, "b": NUMBER}),
)
HOW_OLD = wordings(
    "How old is {friend}?",
    "How old is {friend} now?",
    "What is {friend}'s age?",
    held_out=("What is the age of {friend}?",),
)
COMPARISONS = (
    *(
        Kind((sentence, ask), first + rest, numbers, 0.7)
        for (sentence, first, numbers), (ask, rest) in itertools.product(
            COMPARED, ((FRIENDS, ""), (TOGETHER, " <So|Together> they <have|get> [u=a+t] {item}."))
        )
    ),
    Kind(
        (
            wordings(
                *with_verbs(
                    "{name} DOES {a} {item} on {day}, {b} more {item} on {day2} than on {day}. "
                    "How many {item} does {he} DO on both days?",
                    "On {day} {name} DOES {a} {item}. On {day2} {he} DOES {b} more than on {day}. "
                    "How many {item} does {he} DO on both days?",
                    "{name} DID {a} {item} on {day} and {b} more than that on {day2}. "
                    "How many {item} did {name} DO <in total|altogether|in all>?",
                ),
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
                *with_verbs(
                    "{name} DID {a} {item} in {month}, and <then|later> {he} DID half as many {item} in {month2}. "
                    "How many {item} did {name} DO altogether in {month} and {month2}?",
                    "In {month} {name} DOES {a} {item}. In {month2} {he} DOES half as many. "
                    "How many {item} does {he} DO <altogether|in total|in all>?",
                    "{name} <DID|DOES> {a} {item} in {month} and half as many in {month2}. "
                    "How many {item} are that in total?",
                    "{name} DID {a} {item} on {day} and half as many on {day2}. "
                    "How many {item} did {he} DO <altogether|in total|in all>?",
                ),
                held_out=(
                    "{name} buys {a} {item} in {month} and only half of that number in {month2}. "
                    "How many {item} does {he} buy altogether?",
                    "{name} sells {a} {item} on {day}, and on {day2} half as many. "
                    "How many {item} are that on both days?",
                ),
            ),
        ),
        "<So|Now> {name} <finds|gets> [t=a/2] {item}. <So|Then> {he} <finds|gets> [u=a+t] {item}.",
        {"a": NUMBER},
        1.5,
    ),
    Kind(
        (
            wordings(
                "{name} is {a} years old. {friend} is {b} times as old< as {name}|>. "
                "{uncle} is {c} years older than {friend}.",
                "{uncle} is {c} years older than {friend}. {friend} is {b} times as old as {name}. "
                "{name} is {a}< years old|>.",
                "{friend} is {b} times as old as {name}, who is {a}. {uncle} is {c} years older than {friend}.",
                held_out=(
                    "{name} is {a}. {uncle} is {c} years older than {friend}, who is {b} times as old as {name}.",
                ),
            ),
            wordings("How old is {uncle}?", "How old is {uncle} now?"),
        ),
        "<So|Now> {friend} is [t=a*b] years old. <Then|So> {uncle} is [u=t+c] years old.",
        {"a": ONE_DIGIT, "b": ONE_DIGIT, "c": NUMBER},
    ),
    Kind(
        (
            wordings(
                "{name} is {a}< years old|>. {friend} is {b} years older< than {name}|>.",
                "{friend} is {b} years older than {name}, who is {a}< years old|>.",
                "{name} is {a}< years old|>. {name} is {b} years younger than {friend}.",
                held_out=("{friend} is {b} years older than {name}. {name} is {a} years old.",),
            ),
            HOW_OLD,
        ),
        "<So|Now> {friend} is [t=a+b] years old.",
        {"a": NUMBER, "b": ONE_DIGIT},
        0.6,
    ),
    Kind(
        (
            wordings(
                "{name} is {a}< years old|>. {friend} is {b} years younger< than {name}|>.",
                "{friend} is {b} years younger than {name}, who is {a}< years old|>.",
                "{name} is {a}< years old|>. {name} is {b} years older than {friend}.",
                held_out=("{friend} is {b} years younger than {name}. {name} is {a} years old.",),
            ),
            HOW_OLD,
        ),
        "<So|Now> {friend} is [t=a-b] years old.",
        {"a": NUMBER, "b": ONE_DIGIT},
        0.6,
    ),
)
