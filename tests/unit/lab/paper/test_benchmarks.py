"""The paper's benchmarks in the harness: prompts, and what passes."""

from __future__ import annotations

import pytest

pytest.importorskip("lm_eval")


from lopa_lab.paper.cell_run import _task_manager
from lopa_lab.paper.tasks import BENCHMARKS


def test_all_tasks_are_in_the_harness() -> None:
    known = _task_manager().all_tasks
    tasks = [task for each in BENCHMARKS.values() for task in (each.text, each.chat) if task]
    assert not [task.name for task in tasks if task.name not in known]
