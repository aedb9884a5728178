"""What the commands share: the options that make a configuration, and how errors end a command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from lopa_ray.config.config import Config
from lopa_ray.config.decoder_settings import DECODER_SETTINGS
from lopa_ray.config.yaml_files import parse_yaml
from lopa_ray.errors import CheckpointError, LopaError, PromptError, SettingsError

if TYPE_CHECKING:
    from lopa_ray.engine.base import Engine

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit statuses: a request or case failed; the command or a setting is wrong; Ctrl-C."""

ConfigOption = Annotated[
    str, typer.Option("--config", "-c", metavar="FILE|PRESET", help="YAML file, or a preset that ships.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override any setting; repeat it for more."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="DIR", help="Checkpoint folder, or demo. [model.path]")
]
LoraOption = Annotated[
    str | None, typer.Option("--lora", metavar="DIR", help="PEFT LoRA adapter. [model.lora]")
]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. [model.dtype]")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda or npu. [model.device]")]
DecoderOption = Annotated[
    str | None, typer.Option("--decoder", help=f"{', '.join(DECODER_SETTINGS)}. [decode.decoder]")
]


def _number_or_word(text: str) -> int | str:
    """Which numbers and words there may be is the settings' business."""
    try:
        return int(text)
    except ValueError:
        return text


BranchesOption = Annotated[
    Any,
    typer.Option(
        "--num-branches",
        "-b",
        metavar="N|auto",
        parser=_number_or_word,
        help="Branches per step, the anchor included. [decode]",
    ),
]
TokensOption = Annotated[
    int | None, typer.Option("--max-new-tokens", "-n", help="Length of the answer. [decode]")
]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", help="0 is greedy. [decode]")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Same seed, same tokens. [decode]")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", "-w", help="Branch workers (Ray actors). [group.num_workers]")
]
ShardsOption = Annotated[
    int | None,
    typer.Option(
        "--tensor-parallel-size", help="Actors per worker, each with a shard. [group.tensor_parallel_size]"
    ),
]
LocalOption = Annotated[bool, typer.Option("--local", help="Decode in this process, without Ray.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line, and nothing else.")
]

Changes = dict[str, dict[str, Any]]


def collect_changes(assignments: list[str] | None, shorthands: dict[str, Any]) -> Changes:
    """Section → settings, from `section.key=value` texts and from shorthands that were given.

    A shorthand wins over an assignment to the same setting. Raises SettingsError.
    """
    changes: Changes = {}
    for text in assignments or []:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise SettingsError(f"--set: got {text!r}; allowed: SECTION.KEY=VALUE, as in decode.seed=7")
        try:
            changes.setdefault(section, {})[key] = parse_yaml(value)
        except yaml.YAMLError:
            raise SettingsError(f"--set {name}: got {value!r}, which is no YAML value") from None
    for name, value in shorthands.items():
        if value is not None:
            section, _, key = name.partition(".")
            changes.setdefault(section, {})[key] = value
    return changes


def load_config(source: str, changes: Changes) -> Config:
    """The configuration with the changes of the command line on top. Raises SettingsError."""
    unknown = set(changes) - set(Config.model_fields)
    if unknown:
        raise SettingsError(
            f"unknown section {sorted(unknown)[0]!r}; allowed: {', '.join(Config.model_fields)}"
        )
    return Config.load(source, changes)


def as_yaml(config: Config) -> str:
    """Every setting with its value, as a file that can be loaded again."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False, allow_unicode=True)


@contextmanager
def open_engine(config: Config, *, local: bool) -> Iterator[Engine]:
    """An engine in this process or on Ray actors; closed whatever happens, also on Ctrl-C."""
    engine: Engine
    if local:
        import torch

        from lopa_ray.engine.local import LocalEngine

        torch.set_num_threads(config.group.threads_per_worker)
        engine = LocalEngine.from_config(config)
    else:
        from actors.engine import RayEngine

        engine = RayEngine.from_config(config)
    try:
        yield engine
    finally:
        with deaf_to_interrupts():
            engine.close()


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not cut short what the first one asked for."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread: it gets no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def exits() -> Iterator[None]:
    """Turns the errors that a user can cause into a line on stderr and an exit status."""
    try:
        yield
        sys.stdout.flush()
    except (SettingsError, CheckpointError, PromptError) as error:
        raise fail(str(error), USAGE) from None
    except LopaError as error:
        raise fail(str(error), FAILED) from None
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED, prefix="") from None
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise fail(f"{error.filename}: {error.strerror}", USAGE) from None


def fail(message: str, status: int, prefix: str = "Error: ") -> typer.Exit:
    """Print a message on stderr; returns what to raise."""
    typer.echo(f"{prefix}{message}", err=True)
    return typer.Exit(status)
