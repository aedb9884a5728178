"""The commands of `lopa bench`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from cluster.command_line.command_app import CommandApp
from cluster.command_line.exit_status import FAILED, error_exit
from cluster.command_line.options import (
    ConfigOption,
    DeviceOption,
    SetOption,
    allowed_values,
    parse_overrides,
)
from lopa_lab.bench.measurements import Measurements
from lopa_lab.bench.model_shapes import model_to_measure
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_comparison_commands import english, freedave, rollouts
from lopa_lab.cli.bench_options import benchmark, several
from lopa_lab.cli.bench_serve_command import serve
from lopa_ray.config.group_settings import TransferName
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.errors import SettingsError

app = CommandApp(
    help="Measure forwards, steps, commits, decodes and servers. Each command prints a table, and writes a record.",
    no_args_is_help=True,
)

TRANSPORTS = (*get_args(TransferName), "single_phase")
"""Ways for K/V of a winner to reach the other workers. single_phase: each worker has computed them itself."""

ALL_TRANSPORTS = ",".join(TRANSPORTS)

ALL_DECODERS = ",".join(name for name, decoder in DECODERS.items() if decoder.fills_masks)
"""Decoders for models that fill masks, as the package's model does."""


@benchmark
def forward(
    branches: options.BranchesOption = "1,5,9",
    window: Annotated[Any, several(options.POSITIVE, "Positions per branch.")] = "32",
    prefix: Annotated[Any, several(options.NATURAL, "Cached positions before them.")] = "128",
    requests: options.RequestsOption = "1",
    dtype: Annotated[Any, several(options.WORDS, f"{allowed_values('dtype')}.")] = "float32",
    quantization: Annotated[Any, several(options.WORDS, f"{allowed_values('quantization')}.")] = "none",
    kernel: Annotated[Any, several(options.WORDS, f"Attention: {allowed_values('attention')}.")] = "auto",
    implementation: Annotated[Any, several(options.WORDS, f"{allowed_values('implementation')}.")] = "native",
    cuda_graphs: Annotated[Any, several(options.WORDS, f"{allowed_values('cuda_graphs')}.")] = "none",
    batch_invariant: Annotated[Any, several(options.SWITCHES, "model.batch_invariant: off, on.")] = "off",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = 1,
    repeats: options.RepeatsOption = 25,
) -> Measurements:
    """A worker's step, compared with the floor of the device and a plain batched forward.

    Options that name several take values with commas between them; all combinations are measured, in turns.
    """
    from lopa_lab.bench.forward import measure_forwards
    from lopa_lab.bench.step_plans import StepSize

    variants = {
        "dtype": dtype,
        "quantization": quantization,
        "attention": kernel,
        "implementation": implementation,
        "cuda_graphs": cuda_graphs,
        "batch_invariant": batch_invariant,
    }
    sizes = StepSize.grid(requests, branches, window, prefix)
    with model_to_measure(model, shape, layers) as (name, settings):
        settings["device"] = device
        return measure_forwards(name, settings, variants, sizes, repeats=repeats, threads=threads)


@benchmark
def step(
    workers: Annotated[
        Any, several(options.NATURAL, "Branch workers; 0: this process, without Ray.")
    ] = "0,1,2",
    branches: options.BranchesOption = "8",
    requests: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 1,
    shards: Annotated[
        Any, several(options.POSITIVE, "Actors per worker (group.tensor_parallel_size).")
    ] = "1",
    prompt: options.PromptOption = 64,
    max_new_tokens: options.MaxNewTokensOption = 128,
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    dtype: options.DtypeOption = "float32",
    threads: options.ThreadsOption = 1,
    steps: Annotated[int, typer.Option(min=1, help="Number of measured steps; the median counts.")] = 60,
) -> Measurements:
    """Time of a step by phase, and its kernel launches on an accelerator."""
    from lopa_lab.bench.step import measure_steps
    from lopa_ray.engine.config import Config

    with model_to_measure(model, shape, layers) as (name, settings):
        config = Config.parse(
            {
                "model": {**settings, "device": device, "dtype": dtype},
                "group": {"num_cpus": float(threads)},
                "decode": {"max_new_tokens": max_new_tokens, "ignore_eos": True},
            }
        )
        return measure_steps(
            name, config, workers, shards, branches, requests=requests, prompt=prompt, steps=steps
        )


@benchmark
def commit(
    workers: options.WorkersOption = "1,2",
    span: Annotated[Any, several(options.POSITIVE, "Positions that a commit has.")] = "8,32,64",
    transport: Annotated[Any, several(options.WORDS, f"{', '.join(TRANSPORTS)}.")] = ALL_TRANSPORTS,
    prompt: options.PromptOption = 64,
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: Annotated[Any, several(options.POSITIVE, "Cut the shape down to so many layers.")] = None,
    device: options.DeviceOption = "cpu",
    dtype: options.DtypeOption = "float32",
    threads: options.ThreadsOption = 1,
    rounds: options.RoundsOption = 3,
) -> Measurements:
    """Time to stage K/V (pre-write) and to copy a winner's to every worker (commit-winner)."""
    from lopa_lab.bench.commit import measure_commits
    from lopa_ray.engine.config import Config

    for name in transport:
        if name not in TRANSPORTS:
            raise SettingsError(f"--transport: got {name!r}; allowed: {', '.join(TRANSPORTS)}")
    room = {"device": device, "dtype": dtype, "max_num_seqs": 1}
    with ExitStack() as shapes:
        models = [shapes.enter_context(model_to_measure(model, shape, count)) for count in layers or (None,)]
        group = {"num_cpus": float(threads)}
        configs = [Config.parse({"model": {**settings, **room}, "group": group}) for _, settings in models]
        return measure_commits(
            shape or model, configs, workers, span, transport, prompt=prompt, rounds=rounds
        )


@benchmark
def decode(
    decoder: Annotated[
        Any, several(options.WORDS, f"{', '.join(DECODERS)}.", "all that fill masks")
    ] = ALL_DECODERS,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=A,B", help="Values of a setting, all of which are measured; repeat it."
        ),
    ] = None,
    assignments: SetOption = None,
    config: ConfigOption = "demo",
    requests: Annotated[int, typer.Option(min=1, help="Requests to decode.")] = 20,
    held_out_words: Annotated[
        bool,
        typer.Option(
            "--held-out-words", help="Word problems in words that the model in the package never saw."
        ),
    ] = False,
    concurrency: Annotated[Any, several(options.POSITIVE, "Requests in flight together.")] = "1",
    rounds: Annotated[
        int, typer.Option(min=1, help="Times that all is decoded, in turns; medians count.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Torch threads of this process; with 1 its time counts.")
    ] = None,
    prompt: Annotated[
        int | None, typer.Option(min=1, help="Random prompts of so many tokens in place of word problems.")
    ] = None,
    max_new_tokens: options.MaxNewTokensOption = 64,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Branch workers; without it, this process.")
    ] = None,
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: DeviceOption = None,
) -> Measurements:
    """Whole generations: tokens per second and per forward, latency, problems solved.

    lopa bench decode --decoder lopa --vary decode.num_branches=1,4,8 --vary decode.confidence_threshold=0.8,0.9
    """
    from lopa_lab.bench.decode import Workload, combinations_of, measure_decodes, parse_variations
    from lopa_ray.config.yaml_files import read_config

    overrides = parse_overrides(assignments, max_new_tokens=max_new_tokens, workers=workers, device=device)
    values = read_config(config)
    of_model = overrides.setdefault("model", {})
    path = str({**(values.get("model") or {}), **of_model}.get("path", "demo"))
    with model_to_measure(path, shape, layers) as (name, settings):
        of_model.update(settings)
        if shape is not None:
            of_model["lora"] = None
        variations = {"decode.decoder": decoder, **parse_variations(vary or [])}
        return measure_decodes(
            name,
            values,
            overrides,
            combinations_of(variations),
            Workload(requests, concurrency, prompt if shape is None else prompt or 64, held_out_words),
            local=workers is None and not any(setting.startswith("group.") for setting in variations),
            rounds=rounds,
            threads=threads,
        )


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


def measure_all(
    device: options.DeviceOption = "cpu",
    folder: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of records and plots; what is there is kept."
        ),
    ] = Path("runs/bench"),
    parts: Annotated[Any, several(options.WORDS, "Only these parts.")] = None,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Start no further part after so long, and stop the one that runs.")
    ] = 9.0,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="The smallest sizes, to see in minutes that everything runs.")
    ] = False,
) -> None:
    """Everything that a kind of device can show, as records and plots in one folder.

    Run it again to measure the parts that are missing.
    """
    from lopa_lab.bench.parts import choose_parts, parts_of, run_parts
    from lopa_lab.bench.report import RECORDS, write_report
    from lopa_lab.records.figure import require_matplotlib

    require_matplotlib()
    chosen = choose_parts(parts_of(device), parts)
    missing = run_parts(chosen, folder / RECORDS, seconds=60 * minutes, smallest=smallest, say=typer.echo)
    if len(missing) < len(chosen):
        typer.echo(f"Page: {write_report(folder)}")
    if missing:
        raise error_exit(f"{len(missing)} of {len(chosen)} parts are missing: {', '.join(missing)}", FAILED)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with records/ of lopa bench.")] = Path(
        "benchmarks"
    ),
) -> None:
    """Write a page with tables and plots of all records in a folder."""
    from lopa_lab.bench.report import write_report

    typer.echo(f"Page: {write_report(folder)}")


for _command in (forward, step, commit, decode, freedave, english, rollouts, serve, recovery):
    app.command()(_command)
app.command("all")(measure_all)
app.command()(report)
