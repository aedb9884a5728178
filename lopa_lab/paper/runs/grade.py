"""Grading what a run has decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.tasks.task import PaperTask
from lopa_lab.paper.tasks.task_problem import TaskProblem


def grade_records(
    task: PaperTask, problems: Sequence[TaskProblem], records: Mapping[str, ProblemRecord]
) -> Iterator[ProblemRecord]:
    """The records of `problems` that have no scores yet, with scores, one after the other.

    Programs are executed as many at a time as there are CPUs, each of them in a process of its own. Answers that are
    no programs are graded in this thread.
    """
    ungraded = [each for each in problems if records[each.problem_id].scores is None]

    def grade(problem: TaskProblem) -> ProblemRecord:
        record = records[problem.problem_id]
        return record.model_copy(update={"scores": task.grade(problem, problem.cut(record.text))})

    if not task.runs_code:
        yield from map(grade, ungraded)
        return
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(grade, ungraded)
