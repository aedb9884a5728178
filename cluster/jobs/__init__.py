"""Batch jobs: a file of prompts, decoded by many groups; and decoding as a step of a Ray Data pipeline.

    ray job submit --working-dir . -- python -m cluster.jobs --input FILE --output FILE --groups 4

`job` runs one; `predictor` and `decider` are for Ray Data. `__init__.pyi` lists the public API; each name is imported
when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
