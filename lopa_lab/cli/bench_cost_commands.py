"""Commands of `lopa bench` for what single parts of the project cost."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from lopa_lab.bench.measurements import BenchRecord, Measurements
from lopa_lab.bench.model_shapes import model_to_measure
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import benchmark, several
from lopa_ray.errors import SettingsError


@benchmark
def host(
    requests: options.RequestsOption = "1,8,32",
    branches: options.BranchesOption = "1,8",
    steps: Annotated[int, typer.Option(min=3, max=30, help="Steps per row, the first two left out.")] = 24,
) -> Measurements:
    """Host time of a step: plan, packing, reports."""
    from lopa_lab.bench.host import measure_host

    return measure_host(list(product(requests, branches)), steps)


@benchmark
def decisions(
    questions: Annotated[Any, several(options.POSITIVE, "Questions about the input.")] = "1,3,30,300",
    prefix: Annotated[Any, several(options.WORDS, "input, joint.")] = "input",
    input_len: Annotated[int, typer.Option("--input", min=1, help="Tokens of the input.")] = 256,
    question_len: Annotated[int, typer.Option("--question", min=1, help="Tokens of a question.")] = 24,
    values: Annotated[int, typer.Option(min=1, max=255, help="Values of a question, of a token each.")] = 2,
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    dtype: options.DtypeOption = "float32",
    threads: options.ThreadsOption = 1,
    repeats: options.RepeatsOption = 9,
) -> Measurements:
    """Time per question of many questions about one input."""
    from lopa_lab.bench.decisions import measure_decisions

    for name in prefix:
        if name not in ("input", "joint"):
            raise SettingsError(f"--prefix: got {name!r}; allowed: input, joint")
    with model_to_measure(model, shape, layers) as (name, settings):
        return measure_decisions(
            name,
            {**settings, "device": device, "dtype": dtype},
            questions,
            prefix,
            input_len=input_len,
            question_len=question_len,
            values=values,
            threads=threads,
            repeats=repeats,
        )


@benchmark
def control(
    workers: Annotated[Any, several(options.POSITIVE, "Actors that are called.")] = "1,2,4,8",
    forward_ms: Annotated[
        float, typer.Option(min=0.0, help="Milliseconds that each actor takes to answer.")
    ] = 4.0,
    busy: Annotated[
        bool, typer.Option("--busy", help="Actors compute during that time; without it they sleep.")
    ] = False,
    rounds: options.RoundsOption = 150,
) -> Measurements:
    """A round of Ray's plain calls against one over connections, and one of a compiled graph, without a model."""
    from lopa_lab.bench.control_plane import measure_control

    return measure_control(workers, forward_ms, rounds, busy=busy)


@benchmark
def startup(
    workers: options.WorkersOption = "2",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    dtype: options.DtypeOption = "float32",
    rounds: options.RoundsOption = 3,
) -> Measurements:
    """Time that a group takes to start, by phase, and memory of its workers."""
    from lopa_lab.bench.startup import measure_starts

    room = {"dtype": dtype, "max_num_seqs": 1, "max_model_len": 256}
    with model_to_measure(model, shape, layers) as (name, settings):
        return measure_starts(name, {**settings, **room}, workers, rounds)


@benchmark
def recovery(
    workers: options.WorkersOption = "1,2,4",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    tokens: Annotated[int, typer.Option("--max-new-tokens", min=32, help="Per request.")] = 128,
    rounds: options.RoundsOption = 5,
) -> Measurements:
    """Pause of requests when a worker or a whole group is killed."""
    from lopa_lab.bench.recovery import measure_recoveries

    room = {"max_num_seqs": 1, "max_model_len": 16 + tokens}
    with model_to_measure(model, shape, layers) as (name, settings):
        return measure_recoveries(name, {**settings, **room}, workers, rounds, tokens)


@benchmark
def quantization(
    formats: Annotated[
        Any,
        several(
            options.FORMATS,
            "dtype or dtype/quantization; the first one is compared with.",
            "both dtypes, each with every quantization",
        ),
    ] = ("float32,bfloat16,float32/w8,float32/w8a8,float32/fp8,bfloat16/w8,bfloat16/w8a8,bfloat16/fp8"),
    model: options.ModelOption = "demo",
    problems: Annotated[int, typer.Option(min=1, help="Word problems to decode.")] = 100,
) -> Measurements:
    """Effect of number formats on logits, tokens and solved problems."""
    from lopa_lab.bench.quantization import measure_formats

    return measure_formats(model, formats, problems)


@benchmark
def prefix(
    shared: Annotated[int, typer.Option(min=1, help="Tokens that the random prompts begin with.")] = 512,
    requests: Annotated[int, typer.Option(min=1, help="Random prompts.")] = 8,
    problems: Annotated[int, typer.Option(min=1, help="Word problems that begin like another one.")] = 40,
) -> Measurements:
    """Time that stored prefixes save, and the effect of approximate ones on answers."""
    from lopa_lab.bench.prefix import measure_prefixes

    return measure_prefixes(shared, requests, problems)


@benchmark
def constraints(
    model: options.ModelOption = "demo",
    tokens: Annotated[int, typer.Option(min=1, help="Positions per answer.")] = 256,
    branches: Annotated[int, typer.Option(min=1, help="Branches per step.")] = 8,
) -> Measurements:
    """Cost of structured output: time to make constraints, their size, time per step."""
    from lopa_lab.bench.constraints import measure_constraints

    return measure_constraints(model, tokens, branches)


@benchmark
def schemas(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder of JSON files: schemas, or objects with schema and tests, as JSONSchemaBench has.",
        ),
    ],
    limit: Annotated[float, typer.Option(min=0.1, help="Seconds of processor time for each.")] = 5.0,
) -> Measurements:
    """JSON schemas that structured output accepts, refusals by keyword, and tests of the schemas that are kept."""
    from lopa_lab.bench.schemas import measure_schemas

    return measure_schemas(folder, limit)


@benchmark
def pages(
    requests: Annotated[int, typer.Option(min=1, help="For the memory; a tenth of them for the time.")] = 200,
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at once (model.max_num_seqs).")] = 8,
    branches: options.BranchesOption = "1,4,8",
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements; the least one counts.")] = 7,
) -> Measurements:
    """Slots or pages of K/V: memory that either reserves, and time of attention."""
    from lopa_lab.bench.pages import measure_pages

    return measure_pages(requests, in_flight, branches, repeats)


@benchmark
def cluster(
    steps: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Record of lopa bench step on several numbers of workers: its costs."
        ),
    ] = None,
) -> Measurements:
    """Simulate clusters of up to 1,024 branch actors, from measured costs of messages."""
    from lopa_lab.bench.cluster_simulation import read_costs, simulate_clusters

    return simulate_clusters(read_costs(None if steps is None else BenchRecord.read(steps)))


COMMANDS = (
    host,
    decisions,
    control,
    startup,
    recovery,
    quantization,
    prefix,
    constraints,
    schemas,
    pages,
    cluster,
)
"""In the order of the help."""
