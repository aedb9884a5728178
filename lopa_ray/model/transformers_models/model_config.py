"""TransformersConfig: the configuration of a model that the package transformers runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.config import DraftWidths, Implementation, ModelShape, NativeConfig, Quantization
from lopa_ray.model.experts_config import ExpertParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig(ModelShape):
    """The configuration of a model that the package transformers runs. `config_json` is the text of a config.json as
    its class reads it. `native` is the same model for this project's own transformer; None if only transformers knows
    the family."""

    implementation: ClassVar[Implementation] = "transformers"
    quantization: ClassVar[Quantization] = "none"
    shard_sizes: ClassVar[tuple[int, ...]] = (1,)

    config_json: str
    native: NativeConfig | None = None

    @property
    def intermediate_size(self) -> int:
        """The width of the MLP, or the usual one where only transformers knows the family: its classes share no key."""
        return self.native.intermediate_size if self.native is not None else 4 * self.hidden_size

    def with_quantization(self, quantization: Quantization) -> Self:
        is_none = quantization == "none"
        return self._only("model.quantization", repr(quantization), "none; set it to none", is_none)

    def with_batch_invariant(self, value: bool) -> Self:
        return self._only("model.batch_invariant", "true", "false", not value)

    def unfolded(self) -> Self:
        return self

    def with_draft_adapter(self, widths: DraftWidths) -> Self:
        return self._only("model.draft_adapter", "one", "none; leave it out", False)

    def with_expert_parallel(self, parallel: ExpertParallel) -> Self:
        return self._only("group.expert_parallel", "true", "auto or false", parallel is not True)

    def shard(self, size: int) -> Self:
        return self._only("group.tensor_parallel_size", str(size), "1; set it to 1", size == 1)

    def refusal(self, setting: str, value: str, allowed: str) -> SettingsError:
        """The error for a value of a setting that only native models have."""
        return SettingsError(
            f"{setting}: got {value} for a {self.family} model, which transformers runs; allowed there: {allowed}"
        )

    def _only(self, setting: str, value: str, allowed: str, is_allowed: bool) -> Self:
        if not is_allowed:
            raise self.refusal(setting, value, allowed)
        return self


class LayerShape(NamedTuple):
    kv_heads: int
    head_dim: int
    window: int | None
    """The positions that it sees: a row of the encoder the last `window` positions, its own included, and a canvas the
    last `window` - 1 positions before it. None: everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasConfig(TransformersConfig):
    """The configuration of a model that denoises canvases of random tokens, by modules of the package transformers.
    Rows of its encoder write K/V of prompt and finished canvases, and rows of its decoder denoise a canvas. Layers
    differ in their `layers`; K/V of each fit `num_kv_heads` x `head_dim` values per position (see `fold_heads`)."""

    layers: tuple[LayerShape, ...]


def refuse_other_values(theirs: Any, computed: Mapping[str, tuple[object, ...]], where: str) -> None:
    """Raise CheckpointError, naming the file `where`, if a key of `theirs`, a configuration object of transformers, has
    a value that is not `computed`."""
    for key, values in computed.items():
        if (value := getattr(theirs, key, values[0])) not in values:
            raise unsupported(key, value, where)


def unsupported(key: str, value: object, where: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: got {key} = {value!r}, which is not computed here for models that transformers runs; use a "
        "checkpoint without that feature"
    )
