"""Repeat recorded decodes with every kernel in Triton's interpreter: `interpret_decodes.py FILE N`.

TRITON_INTERPRET=1 has to be set before anything imports Triton, hence a process of its own. FILE is in tests/golden. Of
its decodes N are repeated, spread over the file. Attention and cache are those of GPUs; other operations are torch's on
the CPU, in fp32.
"""

from __future__ import annotations

import sys

from triton.runtime.interpreter import InterpretedFunction

from lopa_lab.conformance.cases import read_cases
from lopa_lab.conformance.replay import replay
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.deviceless_triton import launching_operators
from support.paths import GOLDEN, MODELS


def local_engine(config: Config) -> LocalEngine:
    """An engine whose attention is one operator for all lanes, as on GPUs."""
    model = config.model.model_copy(update={"attention": "reference"})
    return LocalEngine.from_config(config.model_copy(update={"model": model}))


def count_kernels() -> dict[str, int]:
    """Kernel → how often it was interpreted, counted from now on."""
    counts: dict[str, int] = {}
    run = InterpretedFunction.run

    def counted(self: InterpretedFunction, *given: object, **options: object) -> object:
        counts[self.fn.__name__] = counts.get(self.fn.__name__, 0) + 1
        return run(self, *given, **options)

    InterpretedFunction.run = counted
    return counts


def main(file: str, number: int) -> None:
    cases = list(read_cases(GOLDEN / file))
    chosen = cases[:: max(1, len(cases) // number)][:number]
    counts = count_kernels()
    with launching_operators():
        for verdict in replay(chosen, MODELS, local_engine):
            assert verdict.status == "passed", verdict.as_dict()
    print(f"{file}: {len(chosen)} cases; {', '.join(sorted(name.removeprefix('_') for name in counts))}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
