"""The `lopa` command.

Heavy imports (torch, ray) wait until a command needs them, so that help and errors are quick.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli import options as o
from lopa_ray import __version__
from lopa_ray.errors import PromptError, SettingsError

if TYPE_CHECKING:
    from lopa_ray.config.config import Config
    from lopa_ray.decoding.result import TraceStep

app = typer.Typer(
    name="lopa",
    help="Lookahead parallel decoding (LoPA) for diffusion language models, on Ray.",
    epilog="Exit status: 0 done, 1 a request or case failed, 2 wrong usage or settings, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lopa {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without one, or for -, stdin is read.")
    ] = None,
    config: o.ConfigOption = "demo",
    model: o.ModelOption = None,
    lora: o.LoraOption = None,
    dtype: o.DtypeOption = None,
    device: o.DeviceOption = None,
    decoder: o.DecoderOption = None,
    num_branches: o.BranchesOption = None,
    max_new_tokens: o.TokensOption = None,
    temperature: o.TemperatureOption = None,
    seed: o.SeedOption = None,
    assignments: o.SetOption = None,
    workers: o.WorkersOption = None,
    tensor_parallel_size: o.ShardsOption = None,
    local: o.LocalOption = False,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the chat template out.")] = False,
    as_json: o.JsonOption = False,
    trace: Annotated[Path | None, typer.Option(help="Write one JSON object per step to this file.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the canvas and the branch race step by step.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Save the last picture of --watch as an SVG.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="JSONL", help="Many prompts, one per line; - is stdin."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="JSONL", help="Results, in input order.")
    ] = "-",
) -> None:
    """Decode a prompt, or a file of prompts.

    A line of --input is an object with "prompt" (text or token ids), "messages" or "token_ids", and
    optionally "id" and "settings" (decode settings for this line), or just a text or a list of ids.
    """
    with o.exits():
        for given, option in ((workers, "--workers"), (tensor_parallel_size, "--tensor-parallel-size")):
            if local and given is not None:
                raise SettingsError(f"--local and {option} exclude each other; leave one out")
        changes = o.collect_changes(
            assignments,
            {
                "model.path": model,
                "model.lora": lora,
                "model.dtype": dtype,
                "model.device": device,
                "group.num_workers": workers,
                "group.tensor_parallel_size": tensor_parallel_size,
                "decode.decoder": decoder,
                "decode.num_branches": num_branches,
                "decode.max_new_tokens": max_new_tokens,
                "decode.temperature": temperature,
                "decode.seed": seed,
            },
        )
        loaded = o.load_config(config, changes)
        if source is not None:
            if prompt is not None or watch or svg is not None:
                raise SettingsError("--input takes no PROMPT, --watch or --svg; leave them out")
            _generate_many(loaded, source, output, local=local, raw=raw, trace=trace)
        else:
            if output != "-":
                raise SettingsError("--output needs --input; for one prompt redirect stdout")
            text = _read_prompt(prompt)
            _generate_one(
                loaded, text, local=local, raw=raw, as_json=as_json, trace=trace, watch=watch, svg=svg
            )


def _read_prompt(prompt: str | None) -> str:
    from cluster.batch import checked_text

    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            raise SettingsError("no prompt; give one as an argument, on stdin, or a file with --input")
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise PromptError(f"stdin is not UTF-8 ({error.reason} at byte {error.start})") from None
    if not prompt:
        raise PromptError("the prompt is empty; give some text")
    return checked_text(prompt)


def _generate_one(
    config: Config,
    prompt: str,
    *,
    local: bool,
    raw: bool,
    as_json: bool,
    trace: Path | None,
    watch: bool,
    svg: Path | None,
) -> None:
    from rich.console import Console

    from cluster import report
    from cluster.cli.watch import Watcher

    console = Console(stderr=as_json, highlight=False)
    with ExitStack() as stack:
        recorder = stack.enter_context(report.Recorder(trace))
        engine = stack.enter_context(o.open_engine(config, local=local))
        session = engine.create_session(prompt, raw=raw)
        watcher = None
        listeners = [recorder.on_step()]
        if watch or svg is not None:
            watcher = Watcher(console if watch else None, engine.tokenizer, session)
            stack.enter_context(watcher)
            listeners.append(watcher.on_step)

        def on_step(index: int, step: TraceStep) -> None:
            for listen in listeners:
                listen(index, step)

        ((_, result),) = engine.run([session], on_step=on_step)
    if isinstance(result, Exception):
        raise result
    if svg is not None and watcher is not None:
        watcher.save_svg(svg)
    if as_json:
        typer.echo(json.dumps(report.as_json(result, config.decode)))
        return
    answer = result.text if result.text is not None else " ".join(map(str, result.token_ids))
    console.print(answer, markup=False, soft_wrap=True)
    console.print()
    console.print(report.figures(result, recorder.winners))


def _generate_many(
    config: Config, source: str, output: str, *, local: bool, raw: bool, trace: Path | None
) -> None:
    from cluster.batch import read_requests, write_results
    from cluster.report import Recorder

    lines = read_requests(source)
    with Recorder(trace) as recorder, o.open_engine(config, local=local) as engine:
        failures = write_results(engine, lines, output, raw=raw, recorder=recorder)
    if failures:
        raise o.fail(f"{failures} of {len(lines)} lines failed", o.FAILED)


@app.command()
def conformance(
    cases: Annotated[list[Path], typer.Argument(help="Files of recorded cases (JSONL).", metavar="CASES...")],
    models: Annotated[Path, typer.Option(help="Folder of the recorded checkpoints; adapters in ../lora.")],
    workers: o.WorkersOption = None,
    tensor_parallel_size: o.ShardsOption = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or npu.")] = "cpu",
    as_json: o.JsonOption = False,
) -> None:
    """Replay recorded cases and say what differs first.

    Each row's kind is recognised by its keys. Without --workers and --tensor-parallel-size the cases
    run in this process, with one of them on a group of branch workers; logits never leave a worker, so
    forward cases are then skipped, and said to be. Exit status 1 if a case differs, is not supported or cannot be read,
    or if none passed.
    """
    from cluster.cli.conformance import run_conformance

    with o.exits():
        group = {"num_workers": workers, "tensor_parallel_size": tensor_parallel_size}
        passed = run_conformance(
            cases,
            models,
            group={k: v for k, v in group.items() if v is not None},
            device=device,
            as_json=as_json,
        )
    if not passed:
        raise typer.Exit(o.FAILED)


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Ray Serve config; see configs/serve.yaml."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [http_options]")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on. [http_options]")
    ] = None,
    model: o.ModelOption = None,
    lora: o.LoraOption = None,
    workers: o.WorkersOption = None,
    tensor_parallel_size: o.ShardsOption = None,
    assignments: o.SetOption = None,
    api_keys: Annotated[
        str | None,
        typer.Option("--api-keys", metavar="FILE", help="One API key per line. [args.api_keys_file]"),
    ] = None,
) -> None:
    """Serve models behind OpenAI's API, with a playground at /.

    Without --config the demo model on 127.0.0.1:8000. --model, --lora, --workers, --tensor-parallel-size and
    --set change the first model of the config. RAY_ADDRESS names a running cluster; without it a local Ray is
    started, and stopped at the end. SIGTERM and Ctrl-C let what is in flight finish.
    """
    from cluster.serving.launch import Launch

    with o.exits():
        changes = o.collect_changes(
            assignments,
            {
                "model.path": model,
                "model.lora": lora,
                "group.num_workers": workers,
                "group.tensor_parallel_size": tensor_parallel_size,
            },
        )
        launch = Launch(config)
        launch.change(host=host, port=port, api_keys_file=api_keys, model=model, sections=changes)
        launch.check()
        launch.run(typer.echo)


@app.command()
def scale(
    model: Annotated[str, typer.Option("--model", metavar="ID", help="What requests name in `model`.")],
    num_workers: Annotated[
        int | None, typer.Argument(metavar="[N]", help="Branch workers per group; without it, only look.")
    ] = None,
    url: Annotated[str, typer.Option(help="Address of a running `lopa serve`.")] = "http://127.0.0.1:8000",
    api_keys: Annotated[
        str | None,
        typer.Option("--api-keys", metavar="FILE", help="The server's file of keys; the first one is sent."),
    ] = None,
    as_json: o.JsonOption = False,
) -> None:
    """See or change how many workers the groups of a served model have, while they decode.

    N goes for each group (replica) that runs now. Answers stay the same; new workers join when they have a
    place and have loaded the model. A key may also stand in LOPA_API_KEYS.
    """
    from cluster.cli.scale import ask_workers, lines
    from cluster.serving.http.auth import load_api_keys

    with o.exits():
        keys = load_api_keys(api_keys, os.environ)
        found = ask_workers(url, model, num_workers, keys[0] if keys else None)
        for line in [json.dumps(found)] if as_json else lines(found):
            typer.echo(line)


@app.command("config")
def show_config(
    config: o.ConfigOption = "demo",
    assignments: o.SetOption = None,
    decoder: o.DecoderOption = None,
) -> None:
    """Print the effective settings as YAML."""
    with o.exits():
        changes = o.collect_changes(assignments, {"decode.decoder": decoder})
        typer.echo(o.as_yaml(o.load_config(config, changes)), nl=False)


def main() -> None:
    """Entry point: as `app`, and quiet when interrupted or cut off before a command runs."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(o.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(o.FAILED)
