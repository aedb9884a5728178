"""Let a model answer English prompts from templates, as training data for the adapter that drafts for it.

    python examples/training/english_answers.py --output runs/smollm2/answers.jsonl

A line has a prompt and the ids of its answer, with the token that ends it. Every other answer is drawn, at a
temperature of 0.3; the others are greedy. Started again, it goes on after the last line.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from lopa_lab.english_prompts import held_out_prompts, training_prompts
from lopa_ray import Config, LocalEngine, NemotronSettings

MAX_NEW_TOKENS = 160
TEMPERATURES, TOP_K = (0.0, 0.3), 16
TOGETHER = 32
"""Requests in flight."""


def answers_of(engine: LocalEngine, prompts: Sequence[str], first: int) -> list[str]:
    """The lines of prompts, of which the first is prompt number `first` of all."""
    sessions = [
        engine.create_session(
            prompt,
            NemotronSettings(
                block_size=1,
                max_new_tokens=MAX_NEW_TOKENS,
                temperature=TEMPERATURES[number % 2],
                top_k=TOP_K,
                seed=number,
            ),
        )
        for number, prompt in enumerate(prompts, first)
    ]
    answers: dict[int, list[int]] = {}
    for index, result in engine.run(sessions):
        if isinstance(result, Exception):
            raise result
        end = [engine.vocabulary.eos_token_id] if result.finish_reason == "stop" else []
        answers[index] = [*result.token_ids, *end]
    return [json.dumps({"prompt": prompt, "token_ids": answers[at]}) for at, prompt in enumerate(prompts)]


def main() -> None:
    """Answer prompts, some hundreds at a time."""
    parser = argparse.ArgumentParser(description="Answers as training data.")
    parser.add_argument("--model", default="smollm2", help="word, folder or name on the Hub")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=40000, help="prompts in all")
    parser.add_argument("--held-out", action="store_true", help="prompts in words that are not trained on")
    arguments = parser.parse_args()
    prompts = (
        held_out_prompts(0, arguments.count)
        if arguments.held_out
        else [*itertools.islice(training_prompts(65), arguments.count)]
    )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    model = {"path": arguments.model, "dtype": "bfloat16", "max_num_seqs": TOGETHER, "max_model_len": 512}
    with (
        LocalEngine.from_config(Config.load("demo", {"model": model})) as engine,
        arguments.output.open("a+") as file,
    ):
        file.seek(0)
        done = sum(1 for _ in file)
        for first in range(done, len(prompts), 8 * TOGETHER):
            lines = answers_of(engine, prompts[first : first + 8 * TOGETHER], first)
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            print(f"{first + len(lines)} of {len(prompts)} prompts", flush=True)


if __name__ == "__main__":
    main()
