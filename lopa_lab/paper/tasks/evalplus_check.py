"""EvalPlus's comparison of a solution with the canonical one. The sandbox runs this file and then `check()`."""

import json
import os
import sys
import types
from copy import deepcopy


def check() -> None:
    """Returns where the solution passes, and ends the process with exit code 3 where it fails.

    The problem is JSON on stdin: `data_set` (EvalPlus's name), `inputs`, `solution`, and of the row `task_id`,
    `prompt`, `entry_point`, `canonical_solution` and `atol`.
    """
    # evalplus.data imports load_dataset for EvalPerf alone, which is not used here, and the import takes seconds.
    datasets = types.ModuleType("datasets")
    datasets.load_dataset = None  # type: ignore[attr-defined]  # a new module has no attributes
    sys.modules["datasets"] = datasets

    from evalplus.eval import MBPP_OUTPUT_NOT_NONE_TASKS, PASS, untrusted_check
    from evalplus.gen.util import trusted_exec

    problem = json.load(sys.stdin)
    is_mbpp = problem["data_set"] == "mbpp"
    inputs = problem["inputs"]
    if is_mbpp:
        from evalplus.data.mbpp import mbpp_deserialize_inputs

        inputs = mbpp_deserialize_inputs(problem["task_id"], inputs)
    expected, seconds = trusted_exec(
        problem["prompt"] + problem["canonical_solution"],
        deepcopy(inputs),  # since a solution may change them
        problem["entry_point"],
        record_time=True,
        output_not_none=is_mbpp and problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS,
    )
    verdict, _ = untrusted_check(
        problem["data_set"],
        problem["solution"],
        inputs,
        problem["entry_point"],
        expected=expected,
        atol=problem["atol"],
        ref_time=seconds,
        fast_check=True,
        # What EvalPlus's own command takes.
        min_time_limit=1.0,
        gt_time_limit_factor=4.0,
    )
    if verdict != PASS:
        os._exit(3)
