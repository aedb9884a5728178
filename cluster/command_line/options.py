"""Options that several commands share, and what they make of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, get_args
from urllib.parse import urlsplit

import typer
import yaml

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.yaml_files import parse_yaml, presets
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.errors import SettingsError


def allowed_values(setting: str) -> str:
    """The values of a setting of the model that has few, as a help text lists them: "cpu, cuda or npu"."""
    *others, last = get_args(ModelSettings.model_fields[setting].annotation)
    return f"{', '.join(others)} or {last}"


def config_option(help: str = "YAML file, or a preset that ships.") -> Any:
    return typer.Option(
        "--config", "-c", metavar="FILE|PRESET", help=help, autocompletion=lambda: [*presets()]
    )


def _model_setting(name: str) -> Any:
    values = get_args(ModelSettings.model_fields[name].annotation)
    help = f"{allowed_values(name)} (model.{name})."
    return typer.Option(f"--{name}", help=help, autocompletion=lambda: list(values))


ConfigOption = Annotated[str, config_option()]
OptionalConfigOption = Annotated[str | None, config_option()]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override any setting, as SECTION.KEY=VALUE; repeat it for more."
    ),
]
DeviceOption = Annotated[str | None, _model_setting("device")]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Leave the chat template out; text may have special tokens.")
]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", metavar="JSONL", help="Results, in input order.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line, and nothing else.")
]


def _int_or_str(text: str) -> int | str:
    """The settings check which numbers and words are allowed."""
    try:
        return int(text)
    except ValueError:
        return text


class EngineOption(NamedTuple):
    """An option of commands that decode. Its flag, unless it has others, is its name in `ENGINE_OPTIONS`."""

    setting: str | None  # that it sets, with its section
    annotation: Any  # typer's


def _option(setting: str, kind: Any, *flags: str, help: str, **options: Any) -> EngineOption:
    return EngineOption(setting, Annotated[kind | None, typer.Option(*flags, help=help, **options)])


ENGINE_OPTIONS = {
    "model": _option(
        "model.path",
        str,
        metavar="DIR|NAME",
        help="Checkpoint: folder, Hub name (org/name or org/name@revision), smollm2, demo (model.path).",
    ),
    "lora": _option(
        "model.lora", str, metavar="DIR|NAME", help="PEFT LoRA adapter: folder, or Hub name (model.lora)."
    ),
    "dtype": EngineOption("model.dtype", Annotated[str | None, _model_setting("dtype")]),
    "device": EngineOption("model.device", DeviceOption),
    "decoder": _option(
        "decode.decoder",
        str,
        help=f"{', '.join(DECODERS)} (decode.decoder).",
        autocompletion=lambda: [*DECODERS],
    ),
    "num_branches": _option(
        "decode.num_branches",
        Any,
        "--num-branches",
        "-b",
        metavar="N|auto",
        parser=_int_or_str,
        help="Branches per step, the anchor included (decode).",
    ),
    "max_new_tokens": _option(
        "decode.max_new_tokens", int, "--max-new-tokens", "-n", help="Length of the answer (decode)."
    ),
    "suffix": _option(
        "decode.suffix",
        str,
        help="Text after the answer; the model fills in what stands before it (decode).",
    ),
    "temperature": _option("decode.temperature", float, help="0 is greedy (decode)."),
    "seed": _option("decode.seed", int, help="Same seed, same tokens (decode)."),
    "set": EngineOption(None, SetOption),
    "workers": _option(
        "group.num_workers", int, "--workers", "-w", help="Branch workers (Ray actors) (group.num_workers)."
    ),
    "tensor_parallel_size": _option(
        "group.tensor_parallel_size", int, help="Actors per worker, each with a shard of the model (group)."
    ),
    "local": EngineOption(
        None, Annotated[bool, typer.Option("--local", help="Decode in this process, without Ray.")]
    ),
}

SETTINGS = {name: option.setting for name, option in ENGINE_OPTIONS.items() if option.setting}  # that it sets
ConfigOverrides: TypeAlias = dict[str, dict[str, Any]]  # section → setting → value


def parse_overrides(assignments: list[str] | None, **shorthands: Any) -> ConfigOverrides:
    """Overrides from `section.key=value` texts and options in `SETTINGS`, which win. Raises SettingsError."""
    overrides: ConfigOverrides = {}
    for text in assignments or []:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise SettingsError(f"--set: got {text!r}; allowed: SECTION.KEY=VALUE, as in decode.seed=7")
        try:
            overrides.setdefault(section, {})[key] = parse_yaml(value)
        except yaml.YAMLError:
            raise SettingsError(f"--set {name}: got {value!r}, which is not a YAML value") from None
    for name, value in shorthands.items():
        if value is not None:
            section, _, key = SETTINGS[name].partition(".")
            overrides.setdefault(section, {})[key] = value
    return overrides


def refuse_beside(option: str, others: Mapping[str, object]) -> None:
    """Raises SettingsError for the first of the other options, by the names of their parameters, that has a value."""
    for name, value in others.items():
        if value not in (None, False):
            raise SettingsError(f"{option} and --{name.replace('_', '-')} exclude each other; leave one out")


def check_url(url: str, *, with_path: bool = False) -> None:
    """Raises SettingsError for what is not an address of a server, or of a path there if it may have one."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets around something other than an address, or a wrong port
        valid = False
    if not valid or not (with_path or parts.path in ("", "/")):
        raise SettingsError(f"--url: got {url!r}; allowed: an address like http://127.0.0.1:8000")
