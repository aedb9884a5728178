"""The commands of `lopa bench`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_cost_commands import (
    cluster,
    constraints,
    control,
    host,
    pages,
    prefix,
    quantization,
    recovery,
    startup,
)
from lopa_lab.cli.bench_folder_commands import measure_all, report
from lopa_lab.cli.bench_options import benchmark, list_option
from lopa_lab.cli.bench_serve_command import serve
from lopa_ray.errors import SettingsError

app = typer.Typer(
    help="Measure forwards, steps, commits, decodes and servers. Each command prints a table, and writes a record.",
    no_args_is_help=True,
)


@app.command()
def forward(
    branches: Annotated[Any, list_option("--branches", options.POSITIVE, "Branches per request.")] = "1,5,9",
    window: Annotated[Any, list_option("--window", options.POSITIVE, "Positions per branch.")] = "32",
    prefix: Annotated[Any, list_option("--prefix", options.NATURAL, "Cached positions before them.")] = "128",
    requests: Annotated[Any, list_option("--requests", options.POSITIVE, "Requests in flight.")] = "1",
    dtype: Annotated[
        Any, list_option("--dtype", options.WORDS, "auto, float32, bfloat16, float16.")
    ] = "float32",
    quantization: Annotated[Any, list_option("--quantization", options.WORDS, "none, w8, w8a8.")] = "none",
    kernel: Annotated[
        Any,
        list_option(
            "--kernel", options.WORDS, "Attention: auto, sdpa, triton, flash_attn, flex, npu, reference."
        ),
    ] = "auto",
    implementation: Annotated[
        Any, list_option("--implementation", options.WORDS, "native, transformers.")
    ] = "native",
    graphs: Annotated[Any, list_option("--graphs", options.SWITCHES, "model.compile: on, off.")] = "off",
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    threads: options.ThreadsOption = 1,
    repeats: options.RepeatsOption = 25,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """A worker's step beside the floor of the device and a plain batched forward.

    Options that name several take values with commas between them; all combinations are measured, in turns.
    """
    with benchmark("forward", device, output, against) as run:
        from lopa_lab.bench.forward import measure_forwards
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_lab.bench.step_size import StepSize

        variants = {
            "dtype": dtype,
            "quantization": quantization,
            "attention": kernel,
            "implementation": implementation,
            "compile": graphs,
        }
        with model_to_measure(model, shape, layers) as settings:
            run.publish(
                measure_forwards(
                    model_name(model, shape, layers),
                    {**settings, "device": device},
                    variants,
                    StepSize.grid(requests, branches, window, prefix),
                    repeats=repeats,
                    threads=threads,
                )
            )


@app.command()
def step(
    workers: Annotated[
        Any, list_option("--workers", options.NATURAL, "Branch workers; 0: this process, without Ray.")
    ] = "0,1,2",
    branches: Annotated[Any, list_option("--branches", options.POSITIVE, "Branches per request.")] = "8",
    requests: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 1,
    shards: Annotated[
        Any, list_option("--shards", options.POSITIVE, "Actors per worker (group.tensor_parallel_size).")
    ] = "1",
    prompt: options.PromptOption = 64,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 128,
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    dtype: options.DtypeOption = "float32",
    threads: options.ThreadsOption = 1,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Number of measured steps; the median counts.")
    ] = 60,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Time of a step by phase, and its kernel launches on an accelerator."""
    with benchmark("step", device, output, against) as run:
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_lab.bench.step import measure_steps
        from lopa_ray.engine.config import Config

        with model_to_measure(model, shape, layers) as settings:
            config = Config.parse(
                {
                    "model": {**settings, "device": device, "dtype": dtype},
                    "group": {"threads_per_worker": threads},
                    "decode": {"max_new_tokens": max_new_tokens, "ignore_eos": True},
                }
            )
            name = model_name(model, shape, layers)
            run.publish(
                measure_steps(
                    name, config, workers, shards, branches, requests=requests, prompt=prompt, steps=steps
                )
            )


@app.command()
def commit(
    workers: Annotated[Any, list_option("--workers", options.POSITIVE, "Branch workers.")] = "1,2",
    span: Annotated[Any, list_option("--span", options.POSITIVE, "Positions that a commit has.")] = "8,32,64",
    transport: Annotated[
        Any, list_option("--transport", options.WORDS, "collective, object_store, single_phase.")
    ] = "collective,object_store,single_phase",
    prompt: options.PromptOption = 64,
    model: options.ModelOption = "demo",
    shape: options.ShapeOption = None,
    layers: Annotated[
        Any, list_option("--layers", options.POSITIVE, "Cut the shape down to so many layers.")
    ] = None,
    device: options.DeviceOption = "cpu",
    dtype: options.DtypeOption = "float32",
    threads: options.ThreadsOption = 1,
    rounds: options.RoundsOption = 3,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Time to stage K/V (pre-write) and to copy a winner's to every worker (commit-winner)."""
    with benchmark("commit", device, output, against) as run:
        from lopa_lab.bench.commit import TRANSPORTS, measure_commits
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_ray.engine.config import Config

        for each in transport:
            if each not in TRANSPORTS:
                raise SettingsError(f"--transport: got {each!r}; allowed: {', '.join(TRANSPORTS)}")
        with ExitStack() as shapes:
            configs = [
                Config.parse(
                    {
                        "model": {
                            **shapes.enter_context(model_to_measure(model, shape, count)),
                            "device": device,
                            "dtype": dtype,
                            "max_num_seqs": 1,
                        },
                        "group": {"threads_per_worker": threads},
                    }
                )
                for count in layers or (None,)
            ]
            name = model_name(model, shape, None)
            run.publish(
                measure_commits(name, configs, workers, span, transport, prompt=prompt, rounds=rounds)
            )


@app.command()
def decode(
    decoder: Annotated[
        Any, list_option("--decoder", options.WORDS, "lopa, d2f, vanilla, fast_dllm, block_diffusion.")
    ] = "lopa,d2f,vanilla,fast_dllm,block_diffusion",
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="SECTION.KEY=A,B",
            help="Values of a setting, all of which are measured; repeat it.",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="A setting that all have; repeat it."),
    ] = None,
    config: Annotated[
        str, typer.Option("--config", "-c", metavar="FILE|PRESET", help="Where other settings come from.")
    ] = "demo",
    requests: Annotated[int, typer.Option(min=1, help="Requests to decode.")] = 20,
    held_out_words: Annotated[
        bool,
        typer.Option(
            "--held-out-words", help="Word problems in words that the model in the package never saw."
        ),
    ] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight together.")] = 1,
    prompt: Annotated[
        int | None, typer.Option(min=1, help="Random prompts of so many tokens in place of word problems.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 64,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Branch workers; without it, this process.")
    ] = None,
    shape: options.ShapeOption = None,
    layers: options.LayersOption = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or npu (model.device).")] = None,
    output: options.OutputOption = None,
    against: options.AgainstOption = None,
) -> None:
    """Whole generations: tokens per second and per forward, latency, problems solved.

    lopa bench decode --decoder lopa --vary decode.num_branches=1,4,8 --vary decode.confidence_threshold=0.8,0.9
    """
    with benchmark("decode", device or "cpu", output, against) as run:
        from cluster.command_line.options import parse_overrides
        from lopa_lab.bench.decode import Workload, measure_decodes, parse_variations, points_of
        from lopa_lab.bench.model_shapes import model_name, model_to_measure
        from lopa_ray.config.yaml_files import read_config

        overrides = parse_overrides(assignments, max_new_tokens=max_new_tokens, workers=workers)
        values = read_config(config)
        if device is not None:
            overrides.setdefault("model", {})["device"] = device
        path = str({**(values.get("model") or {}), **overrides.get("model", {})}.get("path", "demo"))
        with model_to_measure(path, shape, layers) as settings:
            overrides.setdefault("model", {}).update(settings)
            if shape is not None:
                overrides["model"]["lora"] = None
            variations = {"decode.decoder": decoder, **parse_variations(vary or [])}
            run.publish(
                measure_decodes(
                    model_name(path, shape, layers),
                    values,
                    overrides,
                    points_of(variations),
                    Workload(
                        requests, concurrency, prompt if shape is None else prompt or 64, held_out_words
                    ),
                    local=workers is None and not any(name.startswith("group.") for name in variations),
                )
            )


app.command()(serve)
for _cost in (host, control, startup, recovery, quantization, prefix, constraints, pages, cluster):
    app.command()(_cost)
app.command("all")(measure_all)
app.command()(report)
