"""Decode the same requests alone and in batches of any size: the answers are the same.

python examples/same_answers.py
"""

from __future__ import annotations

from lopa_ray import LocalEngine

PROBLEMS = [
    f"Tom has {bags} bags. There are {cards} cards in each. Mia takes 15 cards. How many cards does Tom have left?"
    for bags in (4, 5, 6, 7)
    for cards in (6, 7, 8, 9)
]


def answers(batch_size: int) -> list[str | None]:
    """The answers of all problems, drawn at a temperature, with so many requests in each step."""
    engine = LocalEngine.from_pretrained("demo", max_num_seqs=batch_size)
    results = engine.generate(PROBLEMS, temperature=0.7, seed=5, max_new_tokens=64)
    return [result.text for result in results]


def main() -> None:
    """Compare batches with requests that run alone."""
    alone = answers(1)
    for batch_size in (2, 5, 16):
        equal = sum(a == b for a, b in zip(alone, answers(batch_size), strict=True))
        print(f"{equal} of {len(PROBLEMS)} answers in batches of {batch_size} are those of requests alone")


if __name__ == "__main__":
    main()
