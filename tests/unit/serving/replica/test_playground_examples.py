"""The example prompts of the playground."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from lopa_lab.word_problems import extract_answer
from lopa_ray.engine.local import LocalEngine

EXAMPLES = json.loads(
    files("cluster.serving.http").joinpath("playground", "examples.json").read_text(encoding="utf-8")
)


@pytest.mark.medium
def test_the_model_in_the_package_solves_every_example() -> None:
    engine = LocalEngine.from_pretrained("demo")
    answers = [extract_answer(engine.generate(example["prompt"]).text) for example in EXAMPLES]
    assert answers == [example["result"] for example in EXAMPLES]
    assert len(EXAMPLES) == 6
