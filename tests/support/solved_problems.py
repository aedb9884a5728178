"""Word problems that the model in the package solves, with its own answers."""

from __future__ import annotations

from cluster.batch.open_engine import open_engine
from lopa_lab.word_problems import Problem, held_out_problems, is_correct
from lopa_ray.engine.config import Config

CANDIDATES = 24
"""Problems to choose from. Most are solved, which ones depends on the model that ships."""


def solved_problems(seed: int, count: int) -> list[tuple[Problem, str]]:
    """The first `count` held-out problems that the preset `demo` solves in this process, each with the text it gave."""
    candidates = held_out_problems(seed, CANDIDATES)
    config = Config.load("demo")
    with open_engine(config, local=True) as engine:
        results = engine.generate([problem.question for problem in candidates], config.decode)
    texts = [result.text or "" for result in results]
    solved = [pair for pair in zip(candidates, texts, strict=True) if is_correct(*pair)]
    assert len(solved) >= count, f"the model solves {len(solved)} of {CANDIDATES} problems"
    return solved[:count]
