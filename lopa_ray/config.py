"""One YAML file → one object: the model, the decode group and the default decode settings."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from lopa_ray.errors import SettingsError
from lopa_ray.model.config import Quantization
from lopa_ray.prefix_cache import PrefixCache
from lopa_ray.scaling import ScalingSettings
from lopa_ray.settings import GenerationSettings, LopaSettings, decode_settings, override
from lopa_ray.strict import Strict

DEMO_MODEL = Path(__file__).parent / "presets" / "demo-model"


SERVE = "serve"
"""The one file beside the presets that is for Ray Serve."""

RAY_OWN_RESOURCES = ("CPU", "GPU", "NPU", "memory", "object_store_memory")


class ModelSettings(Strict):
    """Which checkpoint, and how a worker holds it."""

    path: str = "demo"
    """Folder with a Hugging Face checkpoint, or "demo" for the small model in the package."""

    lora: str | None = None
    """Folder with a PEFT LoRA adapter, merged when loaded (D2F checkpoints are such adapters)."""

    load_format: Literal["safetensors", "dummy"] = "safetensors"
    """dummy: random weights in the shape that config.json gives, for benchmarks without a download."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and KV cache. Scores are always computed in float32."""

    quantization: Quantization = "none"
    """w8a8: int8 weights and activations in the transformer's linear layers; w8: int8 weights; none: as stored."""

    device: Literal["cpu", "cuda", "npu"] = "cpu"
    """Where each worker holds its replica."""

    attention: Literal["auto", "sdpa", "flash_attn", "flex", "npu"] = "auto"
    """Attention kernel: torch's own, of the package flash-attn, torch's flex attention, or torch-npu's; auto tries
    and picks."""

    compile: bool = False
    """Graph mode: torch.compile for the layers, all but attention (npu: TorchAir). Takes a compiler, and up to
    minutes at the start (with shards: at the first step); its rounding differs a little from that of the layers as
    they are."""

    slots: int = Field(default=8, ge=1)
    """Requests in flight per group; each has a KV cache slot on every worker."""

    max_model_len: int = Field(default=2048, ge=2)
    """Positions per slot: prompt plus answer."""

    prefix_cache_positions: int = Field(default=0, ge=0)
    """K/V of prompts that each worker keeps for later ones that begin alike, in positions; 0: none."""

    prefix_cache: Literal["exact", "approximate"] = "exact"
    """exact: where K/V cannot depend on what follows (block-causal attention). approximate: under full attention
    too; tokens then depend on earlier prompts."""

    @property
    def prefixes(self) -> PrefixCache:
        """A new index, as these settings have it."""
        return PrefixCache(self.prefix_cache_positions, self.prefix_cache == "approximate")

    @model_validator(mode="after")
    def _approximate_has_room(self) -> Self:
        if self.prefix_cache == "approximate" and not self.prefix_cache_positions:
            raise ValueError(
                "prefix_cache approximate with prefix_cache_positions 0: nothing is kept; set "
                "prefix_cache_positions or leave prefix_cache out"
            )
        return self

    @model_validator(mode="after")
    def _no_adapter_on_random_weights(self) -> Self:
        if self.load_format == "dummy" and self.lora is not None:
            raise ValueError(
                f"lora {self.lora!r} with load_format dummy: random weights take no adapter; leave one out"
            )
        return self

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return DEMO_MODEL if self.path == "demo" else Path(self.path).expanduser()


class GroupSettings(Strict):
    """One decode group: how many branch workers, and what each takes of the cluster."""

    num_workers: int = Field(default=2, ge=1)
    """Branch workers. More make a step faster; they never change how many branches it has."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """Actors per worker. From 2 on each holds a shard of the model, and all of a worker's are on one node."""

    scaling: ScalingSettings | None = None
    """How the number of workers follows the load, from num_workers on; without it, it stays."""

    num_cpus: float = Field(default=1.0, ge=0.0)
    """CPUs per worker, or per shard of one (Ray resource `CPU`; fractions allowed)."""

    num_accelerators: float = Field(default=1.0, gt=0.0)
    """GPUs or NPUs per worker or shard where the device is cuda or npu; below 1 workers share one."""

    resources: dict[str, float] = Field(default_factory=dict)
    """Further Ray resources per worker or shard."""

    placement: Literal["PACK", "SPREAD"] = "PACK"
    """Workers on few nodes, so that K/V stays within one where it can; or on as many as possible."""

    wait_for_nodes: bool = False
    """An autoscaler may bring nodes: wait for a place up to start_timeout_s where today's nodes have none."""

    shared_branches: int = Field(default=16, ge=1)
    """Branches per step that all requests with branch_budget load have together."""

    threads_per_worker: int = Field(default=1, ge=1, le=1024)
    """Torch threads of each worker or shard."""

    transfer: Literal["auto", "collective", "object_store"] = "auto"
    """How a winner's K/V travels. auto: the collective, or the object store where workers share an accelerator."""

    step_timeout_s: float = Field(default=60.0, gt=0.0)
    """A worker that has not answered a step for this long is lost."""

    start_timeout_s: float = Field(default=600.0, gt=0.0)
    """How long workers may take to be placed and to load the model."""

    resume_timeout_s: float = Field(default=120.0, ge=0.0)
    """How long requests wait for new workers when all of a group are lost, to go on there. 0: they end with it."""

    @property
    def most_workers(self) -> int:
        """As many as the group has at any time, unless somebody calls for more."""
        return self.num_workers if self.scaling is None else self.scaling.max_workers

    @property
    def most_actors(self) -> int:
        """The same in actors that hold a model, or a shard of it."""
        return self.most_workers * self.tensor_parallel_size

    @field_validator("scaling", mode="before")
    @classmethod
    def _scaling(cls, value: Any) -> Any:
        return ScalingSettings(**value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _begins_within_its_bounds(self) -> Self:
        if self.scaling is not None:
            self.scaling.check(self.num_workers)
        return self

    @field_validator("num_accelerators")
    @classmethod
    def _share_or_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"got {value}; allowed: a share of one below 1, or a whole number")
        return value

    @field_validator("resources")
    @classmethod
    def _custom_resources(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if name in RAY_OWN_RESOURCES:
                raise ValueError(
                    f"got {name}; allowed: custom resources (num_cpus and num_accelerators say the rest)"
                )
            if amount <= 0:
                raise ValueError(f"got {name}: {amount}; allowed: amounts above 0")
        return value


class Config(Strict):
    """Everything that one YAML file says."""

    model: ModelSettings = Field(default_factory=ModelSettings)
    """The checkpoint."""

    group: GroupSettings = Field(default_factory=GroupSettings)
    """The decode group."""

    decode: GenerationSettings = Field(default_factory=LopaSettings)
    """Decode settings of requests that say nothing else."""

    @field_validator("decode", mode="before")
    @classmethod
    def _choose_decoder(cls, value: Any) -> Any:
        return decode_settings(value) if isinstance(value, dict) else value

    @field_validator("model", "group", mode="before")
    @classmethod
    def _section(cls, value: Any, info: Any) -> Any:
        section = {"model": ModelSettings, "group": GroupSettings}[info.field_name]
        return section(**value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one_accelerator_each_for_a_collective(self) -> Self:
        shared = self.model.device != "cpu" and self.group.num_accelerators < 1
        if shared and self.group.tensor_parallel_size > 1:
            raise ValueError(
                f"group.tensor_parallel_size {self.group.tensor_parallel_size} with num_accelerators "
                f"{self.group.num_accelerators}: shards that share an accelerator cannot form a collective; set "
                "num_accelerators to 1, or tensor_parallel_size to 1"
            )
        if shared and self.group.transfer == "collective":
            raise ValueError(
                f"group.transfer collective with num_accelerators {self.group.num_accelerators}: workers that share "
                "an accelerator cannot form a collective; use object_store or auto"
            )
        return self

    @model_validator(mode="after")
    def _shards_take_something(self) -> Self:
        group = self.group
        takes = [group.num_cpus, *group.resources.values()]
        if group.tensor_parallel_size > 1 and self.model.device == "cpu" and not any(takes):
            raise ValueError(
                f"group.tensor_parallel_size {group.tensor_parallel_size} with num_cpus 0: shards are kept on one node "
                "by what they take of it; set num_cpus above 0, or tensor_parallel_size to 1"
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Every section as plain values, which `parse` takes."""
        return {name: getattr(self, name).model_dump(mode="json") for name in type(self).model_fields}

    @classmethod
    def load(cls, source: str | Path, changes: dict[str, dict[str, Any]] | None = None) -> Self:
        """Read a YAML file, or the preset of that name, with `changes` (section → values) on top.

        Raises SettingsError if there is no such file or preset, it is no YAML mapping, or a
        value is refused.
        """
        return cls.parse(_read(source), changes)

    @classmethod
    def parse(cls, values: dict[str, Any], changes: dict[str, dict[str, Any]] | None = None) -> Self:
        """From plain values, as a YAML file has them, with `changes` on top."""
        for mapping in (values, *values.values()):
            for key in mapping if isinstance(mapping, dict) else ():
                if not isinstance(key, str):
                    raise SettingsError(f"got {key!r} as the name of a setting; allowed: text")
        # An empty section is one without settings.
        values = {section: value for section, value in values.items() if value is not None}
        for section, overrides in (changes or {}).items():
            current = values.get(section) or {}
            if not isinstance(current, dict):
                raise SettingsError(f"{section}: got {current!r}; allowed: a mapping of settings")
            values[section] = (
                override(current, overrides) if section == "decode" else {**current, **overrides}
            )
        return cls(**values)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text; here it is the number that everybody means."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """YAML → plain values. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def presets() -> dict[str, Path]:
    """The configurations of decode groups that ship with the package, by name."""
    folder = Path(str(files("configs")))
    return {path.stem: path for path in sorted(folder.glob("*.yaml")) if path.stem != SERVE}


def serve_config() -> Path:
    """The Ray Serve config that ships with the package."""
    return Path(str(files("configs"))) / f"{SERVE}.yaml"


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if not path.is_file():
        path = presets().get(str(source), path)
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(
            f"no configuration {str(source)!r}; give a YAML file or a preset ({', '.join(presets())})"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"cannot read configuration {path}: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(
            f"{path}: got {type(values).__name__}; allowed: a mapping with model, group, decode"
        )
    return values
