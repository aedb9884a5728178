"""Kinds of problems about money: prices, change, wages and savings."""

from __future__ import annotations

from lopa_lab.word_problems.kind import FACTOR, NUMBER, ONE_DIGIT, Kind
from lopa_lab.word_problems.wordings import wordings

MONEY = (
    Kind(
        (
            wordings(
                "{name} <buys|bought|gets> {a} {item} <for|at> ${b} each. "
                "How much <does|did> <{he}|{name}> pay< in total|>?",
                "<One|A|Each> {one} costs ${b}. How much do {a} {item} cost?",
                "If <one|each|a> {one} costs ${b}, how much <do {a} {item} cost|does {name} pay for {a} {item}>?",
                "<Each|A> {one} <costs|is> ${b}. {name} <buys|wants|needs> {a}< {item}|>. "
                "How much <does|must> <{he}|{name}> pay< in total|>?",
                "How much does {name} pay for {a} {item} <that|which> cost ${b} each?",
                "How much <do|would> {a} {item} cost <if each costs|at> ${b}?",
                held_out=("The {item} cost ${b} each. How much does {name} pay for {a} of them?",),
            ),
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b].",
        {"a": ONE_DIGIT, "b": FACTOR},
    ),
    Kind(
        (
            wordings(
                "{name} <buys|bought> {a} {item} <for|at> ${b} each and {c} {item2} <for|at> ${d} each. "
                "How much <does|did> <{he}|{name}> pay< in total| in all|>?",
                "<One|Each|A> {one} costs ${b} and one of the {item2} costs ${d}. "
                "How much does {name} pay for {a} {item} and {c} {item2}?",
                "{name} buys {a} {item} <at|for> ${b} each. {He} also buys {c} {item2} <at|for> ${d} each. "
                "How much does {name} <pay in total|pay|spend in total|spend>?",
                "{name} buys {a} {item} and {c} {item2}. <Each|One> {one} costs ${b}, and the {item2} cost ${d} each. "
                "How much does {he} <pay in all|pay|spend>?",
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
                "{name} <has|had> ${c}. {He} <buys|bought> {a} {item} <for|at> ${b} each.",
                "{name} buys {a} {item} <at|for> ${b} each and pays with <${c}|a ${c} bill>.",
                "{name} has ${c} and <buys|wants> {a} {item}. <Each|One|A> {one} costs ${b}.",
                "{name} goes to the {place} with ${c}. {He} buys {a} {item} <at|for> ${b} each.",
                "<One|Each> {one} costs ${b}. {name} buys {a}< {item}|> and pays with ${c}.",
                held_out=(
                    "{name} pays with ${c} for {a} {item} that cost ${b} each.",
                    "{name} has ${c}. The {item} cost ${b} each and {he} buys {a}.",
                ),
            ),
            wordings(
                "How much money <does {he} have left|does {name} have left|does {he} still have|is left>?",
                "How much <does {he} get back|is left|change does {he} get|does {name} have left>?",
            ),
        ),
        "<So|Now> {name} <pays|gives> $[t=a*b]. <Then|So> {he} <has|gets> $[u=c-t] left.",
        {"a": ONE_DIGIT, "b": FACTOR, "c": NUMBER},
        1.5,
    ),
    Kind(
        (
            wordings(
                "{name} <has|had|saves> ${a} and <spends|pays> ${b} <on|for> {item}.",
                "{name} <has|had> ${a}. {He} <spends|spent|loses|pays> ${b}< at the {place}|>.",
                "{name} <has|had> ${a} and <gives|gave> ${b} to {friend}.",
                held_out=("Out of ${a} {name} spends ${b}.",),
            ),
            wordings(
                "How much money <does {he} have left|does {name} have left|does {he} still have|is left>?",
                "How much <does {he} have left|is left|does {name} have now>?",
            ),
        ),
        "<So|Now> {name} <has|gets> $[t=a-b] left.",
        {"a": NUMBER, "b": NUMBER},
        0.8,
    ),
    Kind(
        (
            wordings(
                "{name} sells {a} {item} for ${b} each and buys {c} {box} for ${d} each. "
                "How much money does {he} make?",
                "How much money does {name} make if {he} sells {a} {item} <for|at> ${b} each "
                "and buys {c} {box} <for|at> ${d} each?",
                "{name} <buys|bought> {c} {box} <at|for> ${d} each. <Then|Later> {he} sells {a} {item} <at|for> ${b} "
                "each. How much money does {name} make?",
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
                "{name} saves ${a} <a|each|per> week for {b} weeks and gets ${c} from {friend}.",
                "{friend} gives {name} ${c}. {name} also saves ${a} <{aunit}|each {unit}> for {b} {units}.",
                "{name} has ${c} and saves ${a} <each {unit}|{aunit}> for {b} {units}.",
                held_out=("For {b} weeks {name} saves ${a} a week. Then {he} gets ${c} from {friend}.",),
            ),
            wordings(
                "How many {item} can {he} buy <for|at> ${d} each?",
                "How many {item} <at|for> ${d} each can {name} buy?",
                "<Each|One> {one} costs ${d}. How many {item} can {he} buy?",
            ),
        ),
        "<So|Now> {name} <saves|makes> $[t=a*b]. <Then|So> {he} <has|gets> $[u=t+c]. "
        "<Then|So> {he} can <buy|get> [v=u/d] {item}.",
        {"a": FACTOR, "b": ONE_DIGIT, "c": NUMBER, "d": ONE_DIGIT},
    ),
    Kind(
        (
            wordings(
                "{name} <gets|earns|makes> ${a} an hour and works {b} hours.",
                "{name} <works|worked> {b} hours for ${a} an hour.",
                "{name} <makes|earns> ${a} per hour. {He} works for {b} hours.",
                "{name} <saves|earns|makes> ${a} <{aunit}|each {unit}|per {unit}> for {b} {units}.",
                held_out=("{name} works for {b} hours and gets ${a} for each hour.",),
            ),
            wordings(
                "How much money does <{he}|{name}> <make|get|have>?",
                "How much does <{he}|{name}> <make|get|have>< in total|>?",
            ),
        ),
        "<So|Now> {name} <makes|gets> $[t=a*b].",
        {"a": FACTOR, "b": ONE_DIGIT},
    ),
)
