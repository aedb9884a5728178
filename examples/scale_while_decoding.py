"""Change how many workers a group has while it decodes, and see that the answers stay the same.

python examples/scale_while_decoding.py                          # on a local Ray
RAY_ADDRESS=10.0.0.1:6379 python examples/scale_while_decoding.py   # on a cluster
"""

from __future__ import annotations

import time

from actors.engine import RayEngine
from lopa_ray.config.config import Config
from lopa_ray.presets.word_problems import held_out_problems

PROBLEMS = [problem.question for problem in held_out_problems(1, 8)]


def main() -> None:
    """Decode on one worker, on three, and on two."""
    # scaling={"max_workers": 3} in place of `resize` would have the group follow its load by itself.
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
