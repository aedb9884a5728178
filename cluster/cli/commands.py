"""The commands of `lopa`, their arguments and help. Imports of torch and ray wait until a command needs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
import yaml

from cluster.cli.chat_command import chat
from cluster.cli.decide_command import decide
from cluster.command_line import options
from cluster.command_line.command_app import CommandApp
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.exit_status import FAILED, run_app
from cluster.command_line.progress import ShownTask
from cluster.jobs.__main__ import decode as job
from lopa_ray import __version__
from lopa_ray.config.yaml_files import presets
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError

app = CommandApp(
    name="lopa",
    help="Lookahead parallel decoding (LoPA) for diffusion language models, on Ray.",
    epilog="Exit status: 0 done, 1 a request or case failed, 2 wrong usage or settings, 130 interrupted.",
    no_args_is_help=True,
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
    *,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; without one, or for -, stdin is read.")
    ] = None,
    config: options.OptionalConfigOption = None,
    engine: Annotated[EngineOptions, engine_options("model.*", "decode.*", "set", "group.*", "local")],
    raw: options.RawOption = False,
    as_json: options.JsonOption = False,
    trace: Annotated[Path | None, typer.Option(help="Write one JSON object per step to this file.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the canvas and the branches step by step.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option(help="Save three steps, as --watch shows them, as an SVG.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="FILE|URL", help="Many prompts: JSONL, or Parquet; - is stdin."
        ),
    ] = None,
    output: options.OutputOption = "-",
) -> None:
    """Decode a prompt, or a file of prompts.

    Without --config: the preset demo, in this process. On Ray if --workers or another option of the group, a --config
    with group.num_workers, RAY_ADDRESS or several accelerators ask for it.

    A line of --input is an object with "prompt" (text or token ids), "messages" or "token_ids", and
    optionally "id", "settings" (decode settings for this line), "suffix" or "given_parts" (what is given of
    the answer), "draft" (what is revised) and "parse_special" (with --raw: false reads special tokens in the
    text as characters), or just a text or a list of ids.
    """
    from cluster.batch.source import read_lines
    from cluster.cli.generate import decode_file, generate_one, read_prompt
    from cluster.cli.where_to_decode import is_local

    loaded = engine.load(config)
    if source is not None and (prompt is not None or watch or svg is not None):
        raise SettingsError("--input takes no PROMPT, --watch or --svg; leave them out")
    if source is None and output != "-":
        raise SettingsError("--output needs --input; for one prompt redirect stdout")
    text = read_prompt(prompt) if source is None else ""
    local = is_local(loaded, engine, config)
    if source is not None:
        decode_file(loaded, read_lines(source), output, local=local, raw=raw, trace=trace)
    else:
        generate_one(loaded, text, local=local, raw=raw, as_json=as_json, trace=trace, watch=watch, svg=svg)


app.command()(chat)
app.command()(decide)
app.command("job")(job)


@app.command()
def serve(
    *,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE|PRESET",
            help="Preset or YAML file, as lopa generate takes it, or a Ray Serve config (configs/serve.yaml).",
            autocompletion=lambda: [*presets()],
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (http_options).")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port to listen on (http_options).")
    ] = None,
    engine: Annotated[
        EngineOptions, engine_options("model.*", "decode.*", "group.*", "set", without=("suffix",))
    ],
    replicas: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Groups of workers of the model (num_replicas).")
    ] = None,
    api_keys: Annotated[
        str | None,
        typer.Option("--api-keys", metavar="FILE", help="One API key per line (args.api_keys_file)."),
    ] = None,
    admin_keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keys that change weights (args.admin_keys_file).")
    ] = None,
) -> None:
    """Serve models behind OpenAI's API, with a playground at /.

    Without --config the demo model on 127.0.0.1:8000. Options of the model, its groups and its decoding change
    the first model of the config. RAY_ADDRESS names a running cluster; without it a local Ray is started, and
    stopped at the end. SIGTERM and Ctrl-C let what is in flight finish.
    """
    with ShownTask("Importing Ray Serve"):
        from cluster.serving.launch import ServeLauncher
    overrides = engine.overrides()
    launcher = ServeLauncher(config or engine.preset())
    launcher.apply_options(
        host=host,
        port=port,
        key_files={"api_keys_file": api_keys, "admin_keys_file": admin_keys},
        model=engine["model"],
        replicas=replicas,
        sections=overrides,
    )
    launcher.validate()
    launcher.run(typer.echo)


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
    as_json: options.JsonOption = False,
) -> None:
    """See or change how many workers the groups of a served model have, while they decode.

    N goes for each group (replica) that runs now. Answers stay the same; new workers join when they have a
    place and have loaded the model. A key may also stand in LOPA_API_KEYS.
    """
    from cluster.cli.scale import call_workers_endpoint, format_status
    from cluster.serving.http.api_keys import load_api_keys

    keys = load_api_keys(api_keys, os.environ)
    status = call_workers_endpoint(url, model, num_workers, keys[0] if keys else None)
    for line in [json.dumps(status)] if as_json else format_status(status):
        typer.echo(line)


@app.command()
def models(
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|NAME|WORD]",
            help="Checkpoint: folder, Hub name, smollm2 or demo. A word lists those with it; without one, all.",
        ),
    ] = None,
    assignments: options.SetOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """List the model families that can be run, or what a checkpoint needs of memory.

    These needs follow from its configuration alone: weights are neither read nor downloaded. K/V are for requests as
    long as model.max_model_len, which --set changes.
    """
    from cluster.cli.checkpoint_needs import print_needs
    from cluster.cli.model_families import print_families
    from lopa_ray.execution.model_files import WORDS

    named = checkpoint is not None and ("/" in checkpoint or checkpoint in WORDS or Path(checkpoint).is_dir())
    if checkpoint is not None and named:
        overrides = options.parse_overrides(assignments, model=checkpoint)
        print_needs(Config.parse({}, overrides), as_json=as_json)
    elif assignments:
        raise SettingsError("--set needs a checkpoint; name one, or leave --set out")
    else:
        print_families(checkpoint, as_json=as_json)


@app.command()
def doctor(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that lopa serve is to have.")] = 8000,
) -> None:
    """Say what of this machine lopa can use, what is missing, and what to do about it. Nothing is changed.

    Status 1 if models cannot be decoded here.
    """
    from cluster.cli.doctor import print_findings

    if not print_findings(port):
        raise typer.Exit(FAILED)


@app.command("config")
def show_config(
    *,
    config: options.OptionalConfigOption = None,
    engine: Annotated[EngineOptions, engine_options("set", "decoder")],
) -> None:
    """Print the settings as YAML, without settings that are left to the checkpoint's generation_config.json."""
    values = engine.load(config).without_open_settings()
    typer.echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), nl=False)


app.add_installed_commands()


def main() -> None:
    run_app(app)
