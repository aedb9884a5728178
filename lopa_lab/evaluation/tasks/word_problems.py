"""The data of the task `word_problems`, which lm-evaluation-harness imports from the folder of its YAML file."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from datasets import Dataset, DatasetDict

from lopa_lab.word_problems import held_out_problems

SEED, COUNT = 17, 256


def held_out(**_metadata: Any) -> DatasetDict:
    """`COUNT` held-out problems, as the split `test`: question, answer, result."""
    return DatasetDict(
        {"test": Dataset.from_list([asdict(problem) for problem in held_out_problems(SEED, COUNT)])}
    )
