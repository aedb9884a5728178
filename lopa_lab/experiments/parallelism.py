"""`lopa experiment parallelism`: Are workers better spent on one request, or on one each?"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from queue import SimpleQueue
from typing import Any

from lopa_lab.bench.decoding import results_of
from lopa_lab.experiments.run.experiment import Data, Experiment, ExperimentRecord, Finding
from lopa_lab.experiments.run.outcomes import StepTotals, column
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import error_bars
from lopa_lab.records.intervals import Array, Resamples, estimate
from lopa_lab.records.points_log import Point
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine

CONCURRENCY = (1, 2, 4, 8)
BRANCHES = 8
ROUNDS = 10
BRANCH, TASK = "branch-parallel", "task-parallel"


class Parallelism(Experiment):
    """See the module."""

    problems = 20
    timed = True
    smallest = None
    resampled = "rounds"
    plot_rows = (1, 1)
    method = (
        f"LoPA with {BRANCHES} branches. branch-parallel: one group of group.num_workers workers, which share the "
        "branches of every request. task-parallel: as many groups of one worker each. Both take turns for "
        f"{ROUNDS} rounds, in which so many clients send all problems, one at a time each. Latency: mean time of a "
        "request. Throughput: tokens of a round up to the first EOS ÷ its time."
    )

    def points(self) -> Sequence[Point]:
        return [{"concurrency": count} for count in CONCURRENCY]

    def measure(self, bench: Workbench, point: Point) -> Data:
        """Measure the time of each round of each arrangement. Raises SettingsError for a single worker."""
        clients = int(point["concurrency"] or 0)
        workers = bench.several_workers("parallelism divides several")
        settings = bench.settings(decoder="lopa", num_branches=BRANCHES)
        shared, *own = bench.groups([workers, *[1] * workers], requests=max(CONCURRENCY))
        arrangements = {BRANCH: [shared], TASK: own}
        rounds = {name: StepTotals() for name in arrangements}
        for number in range(-1, ROUNDS):
            names = list(arrangements) if number % 2 else list(arrangements)[::-1]
            # The first round, of as many problems as there are groups, warms up.
            problems = bench.problems if number >= 0 else bench.problems[:1] * workers
            for name in names:
                engines = arrangements[name]
                sessions = [engines[0].create_session(problem.question, settings) for problem in problems]
                began = time.perf_counter()
                results = send(engines, sessions, clients if number >= 0 else workers)
                seconds = time.perf_counter() - began
                tokens = sum(result.tokens for result in results)
                latency = statistics.fmean(result.seconds for result in results)
                if number >= 0:
                    rounds[name].add({"seconds": seconds, "tokens": tokens, "latency": latency})
        columns = {name: totals.columns for name, totals in rounds.items()}
        return {"on this machine": bench.on_this_machine, "workers": workers, **columns}

    def finding(self, record: ExperimentRecord) -> Finding:
        """Both arrangements at both ends, and where they cross."""
        throughput, latency = _figures(record, Resamples(_rounds(record)))
        first, last = CONCURRENCY[0], CONCURRENCY[-1]
        data = record.data(concurrency=first)
        workers = int(data["workers"])
        gain = {c: throughput[TASK, c] / throughput[BRANCH, c] for c in CONCURRENCY}
        wait = {c: latency[BRANCH, c] / latency[TASK, c] for c in CONCURRENCY}
        text = (
            f"With {workers} workers and one request at a time, branch-parallel has a latency of "
            f"{1000 * latency[BRANCH, first][0]:.0f} ms, and task-parallel, where "
            f"{'one worker is' if workers == 2 else f'{workers - 1} workers are'} idle, "
            f"{1000 * latency[TASK, first][0]:.0f} ms: {estimate(1 / wait[first]):.2f} times. With {last} requests in "
            f"flight branch-parallel has {throughput[BRANCH, last][0]:.0f} tokens/s, and task-parallel "
            f"{throughput[TASK, last][0]:.0f}: {estimate(gain[last]):.2f} times. "
            + crossing_sentence("Throughput", gain)
            + " "
            + crossing_sentence("Latency", wait)
            + record.shared_cores(workers, on_this_machine=bool(data["on this machine"]))
        )
        table = {
            "requests in flight": [str(c) for c in CONCURRENCY],
            **{
                f"{name}: latency ms": column((1000 * latency[name, c] for c in CONCURRENCY), ".0f")
                for name in (BRANCH, TASK)
            },
            "latency: task ÷ branch": column((1 / wait[c] for c in CONCURRENCY), ".2f"),
            **{
                f"{name}: tokens/s": column((throughput[name, c] for c in CONCURRENCY), ".0f")
                for name in (BRANCH, TASK)
            },
            "tokens/s: task ÷ branch": column(gain.values(), ".2f"),
        }
        headline = (
            f"With {workers} workers, task-parallel has {estimate(1 / wait[first]):.2f} times the latency of "
            f"branch-parallel for one request, and {estimate(gain[last]):.2f} times its throughput for {last}."
        )
        return Finding(text, table, headline)

    def draw(self, record: ExperimentRecord, *axes: Any) -> None:
        """Latency and throughput over requests in flight."""
        throughput, latency = _figures(record, Resamples(_rounds(record)))
        for axis, figures, scale in ((axes[0], latency, 1000), (axes[1], throughput, 1)):
            for index, name in enumerate((BRANCH, TASK)):
                estimates = [estimate(scale * figures[name, c]) for c in CONCURRENCY]
                error_bars(axis, CONCURRENCY, estimates, index, label=name, capsize=2)
            axis.set_ylim(bottom=0)
        axes[0].set_ylabel("latency (ms)")
        axes[1].set(ylabel="tokens/s", xlabel="requests in flight")
        axes[1].set_xscale("log", base=2)
        axes[1].set_xticks(CONCURRENCY, [str(c) for c in CONCURRENCY])
        axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2)


def send(
    engines: Sequence[Engine], sessions: Sequence[DecodeSession], clients: int
) -> list[GenerationResult]:
    """The results of sessions, decoded by so many clients, each with one at a time on its engine.

    Raises the first error that ends a request.
    """
    engine_of_client: SimpleQueue[Engine] = SimpleQueue()
    for client in range(clients):
        engine_of_client.put(engines[client % len(engines)])

    def decode(session: DecodeSession) -> list[GenerationResult]:
        engine = engine_of_client.get()
        try:
            return results_of(engine, [session])
        finally:
            engine_of_client.put(engine)

    with ThreadPoolExecutor(clients) as pool:
        return list(chain.from_iterable(pool.map(decode, sessions)))


def crossing_sentence(what: str, ratios: Mapping[int, Array]) -> str:
    """A sentence on where each arrangement is ahead in a figure. `ratios`: how far task-parallel is, for each number of
    requests; [1 + resamples], float64."""
    ahead = [bool(ratio[0] >= 1) for ratio in ratios.values()]
    clearly = {
        name: [str(c) for c, ratio in ratios.items() if estimate(sign * (ratio - 1)).low > 0]
        for name, sign in ((TASK, 1), (BRANCH, -1))
    }
    where = "; ".join(
        f"clearly so for {', '.join(numbers)} with {name}" for name, numbers in clearly.items() if numbers
    )
    where = f" ({where})" if where else ", nowhere clearly"
    changes = sum(one != other for one, other in pairwise(ahead))
    begins, ends = (TASK if is_ahead else BRANCH for is_ahead in (ahead[0], ahead[-1]))
    if changes == 0:
        return f"{what} is better with {begins} for every number of requests{where}."
    if changes == 1:
        last = [count for count, is_ahead in zip(ratios, ahead, strict=True) if is_ahead == ahead[0]][-1]
        return f"{what} is better with {begins} up to {last} in flight, and with {ends} beyond that{where}."
    return f"{what} crosses more than once{where}."


def _rounds(record: ExperimentRecord) -> int:
    return len(record.data(concurrency=CONCURRENCY[0])[BRANCH]["seconds"])


def _figures(
    record: ExperimentRecord, resamples: Resamples
) -> tuple[dict[tuple[str, int], Array], dict[tuple[str, int], Array]]:
    """Tokens per second and mean seconds of a request, by arrangement and requests in flight."""
    throughput, latency = {}, {}
    for c in CONCURRENCY:
        data = record.data(concurrency=c)
        for name in (BRANCH, TASK):
            throughput[name, c] = resamples.quotient(data[name]["tokens"], data[name]["seconds"])
            latency[name, c] = resamples.mean(data[name]["latency"])
    return throughput, latency


EXPERIMENT = Parallelism()
