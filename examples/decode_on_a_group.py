"""Decode on a group of Ray actors: many prompts in flight together, and the same tokens as in one process.

python examples/decode_on_a_group.py                          # on a local Ray
RAY_ADDRESS=10.0.0.1:6379 python examples/decode_on_a_group.py   # on a cluster
"""

from __future__ import annotations

from actors import RayEngine
from lopa_ray import Config

PROBLEMS = [
    "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?",
    "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?",
    "How many stamps does Zoe have left from 9 jars of 6 stamps if she gives 23 to Kate?",
]


def main() -> None:
    """Decode some problems on two workers."""
    config = Config.load("demo", {"group": {"num_workers": 2}})
    with RayEngine.from_config(config) as engine:
        for problem, result in zip(PROBLEMS, engine.generate(PROBLEMS), strict=True):
            print(f"{problem}\n{result.text}\n{result.tokens} tokens, TPF {result.tpf:.2f}\n")


if __name__ == "__main__":
    main()
