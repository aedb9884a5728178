"""Change how many workers a group has while it decodes, and see that the answers stay the same.

python examples/scale_while_decoding.py                          # on a local Ray
RAY_ADDRESS=10.0.0.1:6379 python examples/scale_while_decoding.py   # on a cluster
"""

from __future__ import annotations

import time

from actors import RayEngine
from lopa_ray import Config

PROBLEMS = [
    "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?",
    "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?",
    "How many stamps does Zoe have left from 9 jars of 6 stamps if she gives 23 to Kate?",
    "Sam has $50. He buys 4 books for $9 each. How much money does he have left?",
]


def main() -> None:
    """Decode on one worker, on three, and on two."""
    # With group.scaling={"max_workers": 3} the group follows its load by itself, and needs no `resize`.
    config = Config.load("demo", {"group": {"num_workers": 1, "num_cpus": 0.25}})
    with RayEngine.from_config(config) as engine:
        before = [result.text for result in engine.generate(PROBLEMS)]
        for workers in (3, 2):
            engine.resize(workers)
            began, rounds = time.monotonic(), 0
            while (status := engine.status()).workers != workers or not rounds:
                if status.last_error is not None:
                    raise status.last_error
                after = [result.text for result in engine.generate(PROBLEMS)]
                rounds += 1
            seconds = time.monotonic() - began
            print(
                f"{workers} workers after {seconds:.1f} s, in which {rounds * len(PROBLEMS)} requests were decoded"
            )
            print(f"answers as before: {'yes' if after == before else 'no'}")


if __name__ == "__main__":
    main()
