"""Commands of `lopa bench` for what single parts of the project cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import benchmark, list_option


def host(
    requests: Annotated[Any, list_option("--requests", options.POSITIVE, "Requests in flight.")] = "1,8,32",
    branches: Annotated[Any, list_option("--branches", options.POSITIVE, "Branches per request.")] = "1,8",
    steps: Annotated[int, typer.Option(min=3, max=30, help="Steps per row, the first two left out.")] = 24,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Host time of a step: plan, packing, reports."""
    with benchmark("host", "cpu", output, against) as run:
        from itertools import product

        from lopa_lab.bench.host import measure_host

        run.publish(measure_host(list(product(requests, branches)), steps))


def control(
    workers: Annotated[
        Any, list_option("--workers", options.POSITIVE, "Actors that are called.")
    ] = "1,2,4,8",
    forward_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that each actor takes to answer.")
    ] = 4.0,
    busy: Annotated[
        bool, typer.Option("--busy", help="Actors compute during that time; without it they sleep.")
    ] = False,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of measurements.")] = 150,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """A round of Ray's plain calls against one over connections, and one of a compiled graph, without a model."""
    with benchmark("control", "cpu", output, against) as run:
        from lopa_lab.bench.control_plane import measure_control

        run.publish(measure_control(workers, forward_ms, rounds, busy=busy))


def startup(
    workers: Annotated[Any, list_option("--workers", options.POSITIVE, "Branch workers.")] = "2",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    dtype: options.DtypeOption = "float32",
    rounds: options.RoundsOption = 3,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Time that a group takes to start, by phase, and memory of its workers."""
    with benchmark("startup", "cpu", output, against) as run:
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_lab.bench.startup import measure_starts

        room = {"dtype": dtype, "max_num_seqs": 1, "max_model_len": 256}
        with model_to_measure(model, shape, layers) as settings:
            run.publish(
                measure_starts(model_name(model, shape, layers), {**settings, **room}, workers, rounds)
            )


def recovery(
    workers: Annotated[Any, list_option("--workers", options.POSITIVE, "Branch workers.")] = "1,2,4",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    tokens: Annotated[int, typer.Option("--max-new-tokens", min=32, help="Per request.")] = 128,
    rounds: options.RoundsOption = 5,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Pause of requests when a worker or a whole group is killed."""
    with benchmark("recovery", "cpu", output, against) as run:
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_lab.bench.recovery import measure_recoveries

        room = {"max_num_seqs": 1, "max_model_len": 16 + tokens}
        with model_to_measure(model, shape, layers) as settings:
            run.publish(
                measure_recoveries(
                    model_name(model, shape, layers), {**settings, **room}, workers, rounds, tokens
                )
            )


def quantization(
    formats: Annotated[
        Any,
        list_option(
            "--formats", options.FORMATS, "dtype or dtype/quantization; the first one is compared with."
        ),
    ] = "float32,bfloat16,float32/w8,float32/w8a8,bfloat16/w8,bfloat16/w8a8",
    model: options.ModelOption = "demo",
    problems: Annotated[int, typer.Option(min=1, help="Word problems to decode.")] = 100,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Effect of number formats on logits, tokens and solved problems."""
    with benchmark("quantization", "cpu", output, against) as run:
        from lopa_lab.bench.quantization import measure_formats

        run.publish(measure_formats(model, formats, problems))


def prefix(
    shared: Annotated[int, typer.Option(min=1, help="Tokens that the random prompts begin with.")] = 512,
    requests: Annotated[int, typer.Option(min=1, help="Random prompts.")] = 8,
    problems: Annotated[int, typer.Option(min=1, help="Word problems that begin like another one.")] = 40,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Time that stored prefixes save, and the effect of approximate ones on answers."""
    with benchmark("prefix", "cpu", output, against) as run:
        from lopa_lab.bench.prefix import measure_prefixes

        run.publish(measure_prefixes(shared, requests, problems))


def constraints(
    model: options.ModelOption = "demo",
    tokens: Annotated[int, typer.Option(min=1, help="Positions per answer.")] = 256,
    branches: Annotated[int, typer.Option(min=1, help="Branches per step.")] = 8,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Cost of structured output: time to make constraints, their size, time per step."""
    with benchmark("constraints", "cpu", output, against) as run:
        from lopa_lab.bench.constraints import measure_constraints

        run.publish(measure_constraints(model, tokens, branches))


def pages(
    requests: Annotated[int, typer.Option(min=1, help="For the memory; a tenth of them for the time.")] = 200,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once (model.max_num_seqs).")] = 8,
    branches: Annotated[Any, list_option("--branches", options.POSITIVE, "Branches per request.")] = "1,4,8",
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Number of measurements; the least one counts.")
    ] = 7,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Slots or pages of K/V: memory that either reserves, and time of attention."""
    with benchmark("pages", "cpu", output, against) as run:
        from lopa_lab.bench.pages import measure_pages

        run.publish(measure_pages(requests, in_flight, branches, repeats))


def cluster(
    steps: Annotated[
        Path | None,
        typer.Option(
            "--steps",
            metavar="FILE",
            help="Record of lopa bench step on several numbers of workers: its costs.",
        ),
    ] = None,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Simulate clusters of up to 1,024 branch actors, from measured costs of messages."""
    with benchmark("cluster", "cpu", output, against) as run:
        from lopa_lab.bench.cluster_simulation import read_costs, simulate_clusters
        from lopa_lab.bench.record import BenchRecord

        run.publish(simulate_clusters(read_costs(None if steps is None else BenchRecord.read(steps))))
