"""Settings are checked when made: one error that says what was got, what is allowed and what to do."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from pydantic import Field

from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.strict import StrictModel
from lopa_ray.decoding.decoders import DECODERS, merge_decoder_settings, parse_decoder_settings
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, SettingsError

BAD: list[tuple[type, dict[str, Any], list[str]]] = [
    (LopaSettings, {"max_new_tokens": -1}, ["got -1", "greater than or equal to 0"]),
    (LopaSettings, {"max_new_tokens": 4.0}, ["got 4.0", "integer"]),
    (LopaSettings, {"max_new_tokens": True}, ["got True", "integer"]),
    (LopaSettings, {"min_tokens": 9, "max_new_tokens": 8}, ["min_tokens (9)", "max_new_tokens (8)", "lower"]),
    (LopaSettings, {"ignore_eos": 1}, ["got 1", "boolean"]),
    (LopaSettings, {"temperature": -1.0, "top_k": 0}, ["got -1.0"]),
    (LopaSettings, {"temperature": float("nan")}, ["nan"]),
    (LopaSettings, {"top_p": 0.0}, ["got 0.0", "greater than 0"]),
    (LopaSettings, {"seed": 2**63}, []),
    (LopaSettings, {"ranking": "entropy"}, ["'entropy'", "probability", "margin", "neg_entropy"]),
    (LopaSettings, {"commit_protocol": "single_phase"}, ["single_phase", "gone", "follow window_attention"]),
    (LopaSettings, {"num_branches": 1025}, ["got 1025", "1 to 1024, or auto"]),
    (LopaSettings, {"num_branches": "many"}, ["got 'many'", "or auto"]),
    (FastDllmSettings, {"num_branches": 1.5}, ["got 1.5"]),
    (LopaSettings, {"branch_confidence": "max"}, ["'max'", "mean", "bottom"]),
    (LopaSettings, {"branch_confidence": 0.5}, ["got 0.5"]),
    (LopaSettings, {"decoder": "d2f"}, ["'d2f'"]),
    (LopaSettings, {"num_branch": 2}, ["unknown setting num_branch = 2", "did you mean num_branches?"]),
    (LopaSettings, {"xyz": 2}, ["unknown setting xyz = 2", "known:", "block_size"]),
    (D2FSettings, {"num_branches": 2}, ["unknown setting num_branches = 2", "D2FSettings"]),
    (FastDllmSettings, {"fill": "schedule"}, ["schedule", "steps None"]),
    (FastDllmSettings, {"fill": "factor", "steps": 16}, ["factor", "steps 16"]),
    (FastDllmSettings, {"steps": 9, "max_new_tokens": 64}, ["got 9", "multiple", "(2)"]),
    (FastDllmSettings, {"steps": 2, "fill": "schedule", "max_new_tokens": 64}, ["got 2", "twice"]),
    (VanillaSettings, {"steps": 9, "max_new_tokens": 64, "block_size": 32}, ["got 9", "(2)"]),
    (VanillaSettings, {"alg_temp": 0.5, "remasking": "random"}, ["random", "low_confidence"]),
    (BlockDiffusionSettings, {"ranking": "margin", "remasking": "entropy_bounded"}, ["leave ranking out"]),
    (LopaSettings, {"branch_confidence": "geometric", "ranking": "neg_entropy"}, ["neg_entropy"]),
    (LopaSettings, {"stop_token_ids": ["a"]}, ["got 'a'"]),
    (LopaSettings, {"logit_bias": {5: 101}}, ["logit_bias.5", "got 101"]),
    (LopaSettings, {"logit_bias": {"x": 1.0}}, ["logit_bias.x", "got 'x'", "integer"]),
    (LopaSettings, {"logit_bias": {-1: 1.0}}, ["got -1"]),
    (LopaSettings, {"logit_bias": dict.fromkeys(range(1025), 1.0)}, ["1024"]),
    (LopaSettings, {"anchor": "win"}, ["anchor = 'win' in LopaSettings; it is gone", "branch confidence"]),
    (ModelSettings, {"dtype": "int8"}, ["'int8'", "float32"]),
    (ModelSettings, {"quantization": "w8", "implementation": "transformers"}, ["quantization w8", "auto"]),
    (ModelSettings, {"prefix_cache_positions": 99}, ["gone", "set prefix_cache"]),
    (
        Config,
        {"model": {"implementation": "transformers"}, "group": {"tensor_parallel_size": 2}},
        ["tensor_parallel_size 2", "model.implementation transformers", "auto"],
    ),
    (GroupSettings, {"expert_parallel": True}, ["expert_parallel true", "tensor_parallel_size 1"]),
    (GroupSettings, {"expert_parallel": "on"}, ["got 'on'; allowed: true, false or auto"]),
    (GroupSettings, {"num_accelerators": 2.0}, ["got 2.0", "a share of one below 1", "num_workers"]),
]
"""The first name is the setting that the error is about."""


@pytest.mark.parametrize(("kind", "values", "words"), BAD, ids=lambda value: str(value)[:50])
def test_a_bad_value_is_one_clear_error(kind, values, words):
    with pytest.raises(SettingsError) as caught:
        kind(**values)
    message = str(caught.value)
    for word in [*words, next(iter(values)) if kind is not Config else ""]:
        assert word in message
    assert kind is Config or caught.value.setting == next(iter(values))
    assert "\n" not in message
    assert "pydantic" not in message
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, LopaError)
    assert isinstance(caught.value, ValueError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_a_setting_of_other_decoders_names_them():
    with pytest.raises(
        SettingsError, match=r"sub_block_size = 4 for decoder lopa; .* block_diffusion, s2d2; set"
    ):
        parse_decoder_settings({"sub_block_size": 4})
    with_steps = [name for name, decoder in DECODERS.items() if "steps" in decoder.settings.model_fields]
    assert {"vanilla", "fast_dllm"} <= set(with_steps)
    listed = ", ".join(with_steps)
    with pytest.raises(SettingsError, match=rf"steps = 8 for decoder lopa; decoders with it: {listed}; "):
        parse_decoder_settings({"decoder": "lopa", "steps": 8})


def test_several_mistakes_are_named_together():
    with pytest.raises(SettingsError) as caught:
        LopaSettings(block_size=0, top_k=-1, nonsense=3)
    for word in ("block_size", "top_k", "nonsense"):
        assert word in str(caught.value)


def test_settings_are_frozen_and_travel():
    settings = LopaSettings(num_branches=3, window_attention="block_causal")
    with pytest.raises(ValueError):
        settings.num_branches = 4
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_but_is_checked_too():
    settings = LopaSettings(num_branches=3)
    assert settings.replace(block_size=8) == LopaSettings(num_branches=3, block_size=8)
    assert settings.num_branches == 3
    with pytest.raises(SettingsError, match="block_size"):
        settings.replace(block_size=0)


@pytest.mark.parametrize("name", DECODERS)
def test_decode_settings_choose_the_class(name):
    settings = parse_decoder_settings({"decoder": name, "max_new_tokens": 7})
    assert type(settings) is DECODERS[name].settings
    assert (settings.decoder, settings.max_new_tokens) == (name, 7)


@pytest.mark.parametrize("name", ["llada", None, ["lopa"]])
def test_unknown_decoders(name):
    with pytest.raises(SettingsError, match=rf"decoder: got .*allowed: {', '.join(DECODERS)};"):
        parse_decoder_settings({"decoder": name})


def test_lopa_is_the_default_decoder():
    assert parse_decoder_settings({}) == LopaSettings()
    assert Config().decode == LopaSettings()


def test_a_decoder_is_switched_to_as_it_is_published():
    """Neither lookahead nor the sizes of another decoder's blocks come with the switch, unless asked for."""
    demo = Config.load("demo").decode.model_dump()
    common = {"max_new_tokens": demo["max_new_tokens"], "ranking": demo["ranking"]}
    assert parse_decoder_settings(merge_decoder_settings(demo, {"decoder": "vanilla"})) == VanillaSettings(
        **common
    )
    sdar = parse_decoder_settings(
        merge_decoder_settings(demo, {"decoder": "block_diffusion", "num_branches": 3})
    )
    assert sdar == BlockDiffusionSettings(**common, num_branches=3)
    fast = parse_decoder_settings(merge_decoder_settings(demo | {"block_size": 8}, {"decoder": "fast_dllm"}))
    assert fast == FastDllmSettings(**common, block_size=8)


def test_entropy_bounded_ranks_by_entropy_and_only_it():
    bounded = BlockDiffusionSettings(remasking="entropy_bounded")
    assert bounded.ranking == "neg_entropy"
    assert bounded.replace(remasking="sequential").ranking == "probability"
    assert bounded.replace(eb_threshold=1.0).ranking == "neg_entropy"


def test_override_keeps_drops_and_replaces():
    lopa = {"num_branches": 4, "block_size": 8}
    assert merge_decoder_settings(lopa, {"block_size": 16}) == {"num_branches": 4, "block_size": 16}
    assert merge_decoder_settings(lopa, {"decoder": "lopa"}) == {**lopa, "decoder": "lopa"}
    assert merge_decoder_settings(lopa, {"decoder": "d2f"}) == {"block_size": 8, "decoder": "d2f"}
    assert lopa == {"num_branches": 4, "block_size": 8}
    # Overrides of the caller are never dropped, and unknown names and values stay errors.
    for values, overrides in (
        (lopa, {"decoder": "d2f", "num_branches": 2}),
        ({"nonsense": 1}, {}),
        (lopa, {"decoder": "unknown"}),
        (lopa, {"decoder": ["d2f"]}),
    ):
        with pytest.raises(SettingsError):
            parse_decoder_settings(merge_decoder_settings(values, overrides))


def test_a_dtype_of_torch_is_as_good_as_its_name() -> None:
    dtype = torch.bfloat16
    settings = ModelSettings(dtype=dtype)
    assert settings == ModelSettings(dtype="bfloat16") and settings.model_dump()["dtype"] == "bfloat16"
    assert Config.load("demo", {"model": {"dtype": dtype}}).model.dtype == "bfloat16"
    with LocalEngine.from_pretrained("demo", dtype=dtype, max_model_len=64) as engine:
        assert engine.runner.model.embed.weight.dtype == dtype


def test_a_dtype_that_weights_are_not_held_in_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"got 'int8'.*bfloat16"):
        ModelSettings(dtype=torch.int8)


@pytest.mark.parametrize(("step_timeout_s", "limit"), [(1.0, 4.0), (60.0, 4.0), (300.0, 20.0)])
def test_what_counts_as_hung_follows_the_deadline_of_a_step(step_timeout_s: float, limit: float) -> None:
    assert GroupSettings(step_timeout_s=step_timeout_s).hung_after_s == limit


def test_a_docstring_lists_the_fields() -> None:
    class Sample(StrictModel):
        """A sample."""

        size: int = 3
        """How large."""
        names: list[str] = Field(default_factory=list)

    assert Sample.__doc__ == (
        "A sample.\n\nFields:\n    size: int = 3\n        How large.\n    names: list[str] = list()"
    )
