"""Evaluate a demo model: problems, a visitor's questions, decisions and holes, none of which it was trained on.

    python examples/training/evaluate_demo_model.py [MODEL] [--problems 300]

MODEL is a folder, the model in the package if left out. One JSON object is printed.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_batches import decision_batch
from demo_model import forward
from demo_rows import ANSWER_LEN, encode_decision
from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID, TOKENIZER_FILES, chat_prompt
from lopa_lab.word_problems import Problem, held_out_problems, is_correct
from lopa_lab.word_problems.decisions import held_out_decisions
from lopa_ray import D2FSettings, LocalEngine, LopaSettings
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.transformer import Transformer

VISITOR_QUESTIONS = Path(__file__).parents[2] / "tests" / "data" / "visitor_questions.jsonl"
"""Questions as a visitor would type them, which were written before the training."""


def visitor_questions() -> list[Problem]:
    """They have no worked answers."""
    lines = map(json.loads, VISITOR_QUESTIONS.read_text(encoding="utf-8").splitlines())
    return [Problem(line["question"], "", line["answer"]) for line in lines]


def evaluate(
    folder: Path, problems: list[Problem], settings: D2FSettings | LopaSettings
) -> tuple[float, float]:
    """Share of problems that a model solves, and its TPF: all tokens over all steps."""
    with LocalEngine.from_pretrained(folder, max_num_seqs=16, max_model_len=320) as engine:
        results = engine.generate([problem.question for problem in problems], settings)
    solved = sum(is_correct(p, r.text or "") for p, r in zip(problems, results, strict=True))
    return solved / len(problems), sum(r.tokens for r in results) / sum(r.steps for r in results)


def evaluate_decisions(model: Transformer, tokenizer: Tokenizer, count: int, seed: int) -> dict[str, float]:
    """Share of decisions of each kind whose right label is the likeliest one; all tokens of a slot are read at once."""
    right: dict[str, list[bool]] = {}
    for decision in held_out_decisions(seed, count):
        batch = decision_batch(tokenizer, [decision])
        _, _, labels = encode_decision(tokenizer, decision)
        slot = len(labels[0])
        hidden = forward(model, batch.inputs, batch.attention_mask)[0]
        scores = model.lm_head(hidden[-slot - 1 : -1].float()).log_softmax(-1)
        totals = [sum(scores[i, token].item() for i, token in enumerate(label)) for label in labels]
        right.setdefault(decision.kind, []).append(totals.index(max(totals)) == decision.right)
    return {kind: sum(answers) / len(answers) for kind, answers in sorted(right.items())}


def evaluate_infilling(model: Transformer, tokenizer: Tokenizer, count: int, seed: int) -> float:
    """Share of answers in which a whole calculation, such as `12*8=96`, is filled in as it was."""
    right = 0
    problems = held_out_problems(seed, count)
    for problem in problems:
        ids, begin, end = with_hole(tokenizer, problem)
        target = ids[begin:end].clone()
        ids[begin:end] = MASK_TOKEN_ID
        while (masked := ids == MASK_TOKEN_ID).any():
            hidden = forward(model, ids[None], torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool))[0]
            confidence, token = model.lm_head(hidden.float()).softmax(-1)[:-1].max(-1)
            place = int(confidence.where(masked[1:], torch.tensor(-1.0)).argmax())
            ids[place + 1] = token[place]
        right += bool((ids[begin:end] == target).all())
    return right / count


def with_hole(tokenizer: Tokenizer, problem: Problem) -> tuple[Tensor, int, int]:
    """Ids of prompt, answer and its end, and from where to where the first calculation of the answer stands."""
    prompt = tokenizer.encode(chat_prompt(problem.question)).ids
    answer = tokenizer.encode(problem.answer)
    calculation = re.search(r"\d+[-+*/]\d+=\d+", problem.answer)
    assert calculation is not None
    inside = [
        index
        for index, (begin, end) in enumerate(answer.offsets)
        if begin >= calculation.start() and end <= calculation.end()
    ]
    ids = torch.tensor([*prompt, *answer.ids, EOS_TOKEN_ID])
    return ids, len(prompt) + inside[0], len(prompt) + inside[-1] + 1


@torch.no_grad()
def evaluate_all(folder: Path, count: int, seed: int = 1) -> dict[str, float]:
    """Every figure of a model, with `count` samples each but the visitor's.

    One branch has decoder d2f, and LoPA 4 branches. Decisions read all tokens of a slot at once, which `lopa eval
    decisions` does not.

    TPF counts tokens up to and including the first end of text. Threshold 0.9, blocks of 32, float32.
    """
    one = D2FSettings(max_new_tokens=ANSWER_LEN)
    four = LopaSettings(max_new_tokens=ANSWER_LEN, num_branches=4)
    held_out, words = held_out_problems(seed, count), held_out_problems(seed, count, held_out_words=True)
    figures: dict[str, float] = {}
    figures["solved"], figures["tpf"] = evaluate(folder, held_out, one)
    figures["solved_by_lopa"], figures["tpf_of_lopa"] = evaluate(folder, held_out, four)
    figures["solved_in_held_out_words"], figures["tpf_in_held_out_words"] = evaluate(folder, words, one)
    figures["solved_of_visitors"], figures["tpf_of_visitors"] = evaluate(folder, visitor_questions(), one)
    model = load_model(folder, dtype=torch.float32, device="cpu")
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    for kind, share in evaluate_decisions(model, tokenizer, count, seed).items():
        figures[f"right_of_{kind}"] = share
    figures["right_of_infilling"] = evaluate_infilling(model, tokenizer, count, seed)
    return figures


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description="Evaluate a demo model.")
    parser.add_argument(
        "model", nargs="?", type=Path, default=DEMO_MODEL, help="folder; default: the package's model"
    )
    parser.add_argument("--problems", type=int, default=300, help="samples of each sort")
    parser.add_argument("--seed", type=int, default=1, help="of the held-out samples")
    arguments: Any = parser.parse_args()
    if arguments.problems < 1:
        parser.error(f"--problems: got {arguments.problems}; need 1 or more")
    if not (arguments.model / "config.json").exists():
        parser.error(f"MODEL: {arguments.model} has no config.json; name a model's folder")
    print(json.dumps(evaluate_all(arguments.model, arguments.problems, arguments.seed), indent=2))


if __name__ == "__main__":
    main()
