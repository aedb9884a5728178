"""Print decisions that the demo model was not trained on, with their right answers, for `lopa eval decisions`.

python examples/training/labelled_decisions.py > labelled.jsonl
lopa eval decisions labelled.jsonl --local
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from lopa_lab.word_problems.decisions import Decision, held_out_decisions


def labelled(decision: Decision) -> dict[str, Any]:
    """A line of the file: the input, and the question in the shape of OpenAI's API with its answer."""
    instructions, *listed, _ = decision.question.message.split("\n")
    texts = [line.partition(": ")[2] for line in listed]
    question: dict[str, Any] = {"instructions": instructions}
    if decision.kind == "predicate":
        question |= {"type": "predicate", "answer": decision.right == 0}
    elif decision.kind == "choice":
        choices = [{"value": text} for text in texts]
        question |= {"type": "choice", "choices": choices, "answer": texts[decision.right]}
    else:
        question |= {"type": "score", "levels": [{"label": text} for text in texts], "answer": decision.right}
    return {"input": decision.input, "questions": [question]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print labelled decisions that the demo model has not seen.")
    parser.add_argument("--count", type=int, default=300, help="decisions")
    parser.add_argument("--seed", type=int, default=1, help="of the decisions")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error(f"--count: got {arguments.count}; need 1 or more")
    for held_out in held_out_decisions(arguments.seed, arguments.count):
        print(json.dumps(labelled(held_out)))
