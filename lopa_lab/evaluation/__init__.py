"""Evaluation by lm-evaluation-harness: importing this package registers the model class `lopa_ray` with it.

    import lopa_lab.evaluation
    from lm_eval import simple_evaluate

    simple_evaluate(model="lopa_ray", model_args="config=demo,num_branches=8", tasks=["gsm8k"])

Needs the extra `[eval]`; without it the import raises ModuleNotFoundError.
"""

from __future__ import annotations

from lopa_lab.evaluation.harness_model import LopaRayLM

__all__ = ["LopaRayLM"]
