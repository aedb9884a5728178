"""Draft adapters: rows that draft go through the merged weights, and all others through the plain ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.config import DraftWidths, Quantization
from lopa_ray.model.linear import Linear
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.transformer import Transformer
from support.draft_adapters import ALL_LINEAR, OUTPUTS, save_draft_adapter
from support.paths import MODELS
from support.thread_tensor_parallel import ShardedRunner
from support.tiny_model import DENSE_FAMILIES, TINY_MODELS, odd_model

torch.set_num_threads(1)

DRAFT_ROWS = torch.tensor([0, 1, 1, 0, 1, 0], dtype=torch.float64)
IDS = torch.tensor([5, 127, 127, 9, 127, 11])


def alone(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows that see nothing but themselves, so rows that do not draft depend on no row that drafts."""
    return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = [x.transpose(0, 1) for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(0, 1)


def spec_of(model: Path, adapter: Path | None, **settings: object) -> ModelSpec:
    given = {"path": str(model), "draft_adapter": adapter and str(adapter), "max_model_len": 64, **settings}
    return ModelSpec.read(Config(model=ModelSettings.model_validate(given)))


def loaded(model: Path, adapter: Path | None, **settings: object) -> Transformer:
    found = build_runner(spec_of(model, adapter, **settings)).model
    assert isinstance(found, Transformer)
    return found


def reference(model: Path, adapter: Path) -> Transformer:
    """The plain model, in which rows that draft get the result of the merged layers."""
    # Without a list of targets: LLaDA's LM head has the name of a layer's module, and is not adapted.
    copy = configured(Path(shutil.copytree(adapter, f"{adapter}-merged")), target_modules=".*")
    plain, merged = (load_model(model, dtype=torch.float32, device="cpu", lora=lora) for lora in (None, copy))

    def choosing(layer: Linear, other: Linear) -> None:
        ours = layer.forward
        layer.forward = lambda x, rows=None: torch.where(rows > 0, other(x), ours(x))  # type: ignore[method-assign]

    for name, layer in plain.layers.named_modules():
        if isinstance(layer, Linear):
            choosing(layer, merged.layers.get_submodule(name))  # type: ignore[arg-type]
    return plain


def hidden(model: Transformer, attention: object, draft_rows: Tensor | None = DRAFT_ROWS) -> Tensor:
    with torch.inference_mode():
        return model(IDS, torch.arange(len(IDS)), attention, draft_rows=draft_rows)


@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_rows_that_draft_have_the_merged_weights_and_others_the_bits_of_the_plain_model(
    family: str, tmp_path: Path
) -> None:
    model = MODELS / TINY_MODELS[family]
    linear = ALL_LINEAR.get(family, ALL_LINEAR[""])
    plain = hidden(loaded(model, None), alone, None)
    for at, targets in enumerate((linear, linear[3:4], (*linear[:3], *linear[4:6]), linear[6:])):
        adapter = save_draft_adapter(tmp_path / str(at), model, targets)
        drafting, merged = loaded(model, adapter), reference(model, adapter)
        for attention in (alone, causal):
            got, expected = hidden(drafting, attention), hidden(merged, attention)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        is_plain = (hidden(drafting, alone) == plain).all(-1)
        assert is_plain.tolist() == [row == 0 for row in DRAFT_ROWS]
        assert torch.equal(hidden(drafting, alone, None), plain)


def test_a_layer_has_one_product_for_each_half_of_all_that_it_fuses(tmp_path: Path) -> None:
    model = MODELS / "nemotron-tiny-3l"
    drafting = loaded(model, save_draft_adapter(tmp_path / "adapter", model, ALL_LINEAR[""]))
    shapes = {
        name.removeprefix("layers.0."): tuple(parameter.shape)
        for name, parameter in drafting.named_parameters()
        if name.startswith("layers.0.") and ".draft." in name
    }
    size, inner = drafting.config.hidden_size, drafting.config.intermediate_size
    assert shapes["qkv.draft.down.weight"] == (9, size) and shapes["qkv.draft.up.weight"][1] == 9
    assert shapes["mlp.gate_up.draft.up.weight"] == (2 * inner, 6)
    assert shapes["mlp.down.draft.down.weight"] == (3, inner)
    assert len(shapes) == 8


WIDTHS: DraftWidths = (("qkv", 9), ("o", 3), ("mlp.gate_up", 6), ("mlp.down", 3))


def drafted_logits(runner: BranchRunner | ShardedRunner) -> Tensor:
    return runner.logits(IDS.tolist(), draft_adapter=True)


@pytest.mark.parametrize("quantization", ["none", "w8", "w8a8"])
@pytest.mark.parametrize("kv_heads", [2, 3])
def test_shards_draft_as_the_whole_model(quantization: Quantization, kv_heads: int) -> None:
    """In two and three shards."""
    whole = odd_model(num_kv_heads=kv_heads, draft_widths=WIDTHS, quantization=quantization)
    size = {"max_num_seqs": 1, "max_model_len": 16}
    expected = drafted_logits(BranchRunner(whole, **size))
    shards = ShardedRunner(whole, kv_heads, **size)
    torch.testing.assert_close(drafted_logits(shards), expected, atol=2e-4, rtol=1e-4)
    plain = BranchRunner(whole, **size).logits(IDS.tolist())
    assert (plain - expected).abs().max() > 0.1
    held = dict(shards.model.named_parameters())
    assert held["layers.0.o.draft.down.weight"].shape == (3, 96 // kv_heads)
    assert held["layers.0.mlp.gate_up.draft.up.weight"].shape == (2 * 198 // kv_heads, 6)


def test_drafts_of_an_invariant_model_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    model = MODELS / "nemotron-tiny-3l"
    adapter = save_draft_adapter(tmp_path / "adapter", model, ALL_LINEAR[""])
    drafting = loaded(model, adapter, batch_invariant=True, dtype="bfloat16")
    with torch.inference_mode():
        ids, rows = IDS.repeat(12), DRAFT_ROWS.repeat(12)
        many = drafting(ids, torch.arange(6).repeat(12), alone, draft_rows=rows)
    assert torch.equal(many[:6], hidden(drafting, alone)) and torch.equal(many[-6:], many[:6])


@pytest.mark.parametrize("tied", [False, True])
def test_the_vector_of_the_mask_replaces_its_embedding(tmp_path: Path, tied: bool) -> None:
    model = MODELS / "nemotron-tiny-3l"
    (folder := tmp_path / "model").mkdir()
    raw, tensors = json.loads((model / "config.json").read_text()), load_file(model / "model.safetensors")
    if tied:
        del tensors["diffusion_head.weight"]
    (folder / "config.json").write_text(json.dumps(raw | {"tie_word_embeddings": tied}))
    save_file(tensors, folder / "model.safetensors")
    adapter = save_draft_adapter(
        tmp_path / "adapter", folder, ["o_proj"], mask_token=127, embedding="encoder.embed_tokens"
    )
    plain, drafting = loaded(folder, None), loaded(folder, adapter)
    name = "base_model.model.encoder.embed_tokens.token_adapter.trainable_tokens_delta"
    vector = load_file(adapter / "adapter_model.safetensors")[name]
    assert torch.equal(drafting.embed.weight[127:128], vector)
    assert torch.equal(drafting.embed.weight[:127], plain.embed.weight[:127])
    assert (drafting.lm_head.weight is drafting.embed.weight) == tied
    if not tied:
        assert torch.equal(drafting.lm_head.weight, plain.lm_head.weight)


def configured(adapter: Path, **changes: object) -> Path:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return adapter


@pytest.mark.parametrize(
    ("targets", "changes", "parts"),
    [
        (ALL_LINEAR[""], {"target_modules": ["q_proj", "v_proj"]}, ("q_proj, v_proj without k_proj",)),
        (ALL_LINEAR[""], {"target_modules": ["o_proj", "lm_head"]}, ("lm_head", "may have q_proj, k_proj")),
        (ALL_LINEAR[""], {"target_modules": ".*_proj"}, ("target_modules = '.*_proj'",)),
        (OUTPUTS, {"target_modules": ["o_proj", "down_proj"]}, ("down_proj.lora_A.weight is missing",)),
        (OUTPUTS, {"target_modules": ["encoder.layers.0.self_attn.o_proj"]}, ("encoder.layers.0",)),
        (OUTPUTS, {"exclude_modules": ["x"]}, ("layers.2.self_attn.o_proj", "in every layer")),
        (OUTPUTS, {"r": 4, "lora_alpha": 4}, ("do not have the rank 4",)),
        (OUTPUTS, {"rank_pattern": {"layers.2.self_attn.o_proj": 2}}, ("one rank, here 3",)),
        (OUTPUTS, {"trainable_token_indices": [126]}, ("trainable_token_indices = [126]", "[127]")),
        (OUTPUTS, {"trainable_token_indices": {"embed_tokens": [127, 1]}}, ("[127, 1]",)),
        (OUTPUTS, {"trainable_token_indices": [127]}, ("no tensor", "embed_tokens", "[1, 64]")),
    ],
)
def test_other_adapters_are_refused_by_what_they_have(
    tmp_path: Path, targets: Sequence[str], changes: dict[str, object], parts: tuple[str, ...]
) -> None:
    model = MODELS / "nemotron-tiny-3l"
    adapter = configured(save_draft_adapter(tmp_path / "adapter", model, targets), **changes)
    file, module = adapter / "adapter_model.safetensors", "base_model.model.encoder.layers.2.self_attn.o_proj"
    tensors = load_file(file)
    for half in "AB":
        if "exclude_modules" in changes:
            del tensors[f"{module}.lora_{half}.weight"]
        elif "rank_pattern" in changes:
            whole = tensors[f"{module}.lora_{half}.weight"]
            tensors[f"{module}.lora_{half}.weight"] = (
                whole[:2] if half == "A" else whole[:, :2]
            ).contiguous()
    save_file(tensors, file)
    with pytest.raises(CheckpointError) as caught:
        loaded(model, adapter)
    for part in parts:
        assert part in str(caught.value)


def test_layers_of_experts_have_adapters_of_attention_alone(tmp_path: Path) -> None:
    model = MODELS / "sdar-moe-tiny-3l"
    adapter = save_draft_adapter(tmp_path / "adapter", model, ("q_proj", "k_proj", "v_proj", "o_proj"))
    plain, drafting = hidden(loaded(model, None), alone, None), loaded(model, adapter)
    is_plain = (hidden(drafting, alone) == plain).all(-1)
    assert is_plain.tolist() == [row == 0 for row in DRAFT_ROWS]
    with pytest.raises(CheckpointError, match=r"gate_proj;.*may have q_proj, k_proj, v_proj, o_proj: use"):
        loaded(model, configured(adapter, target_modules=["gate_proj"]))


def test_a_token_may_have_a_vector_in_adapters_for_drafts_alone(tmp_path: Path) -> None:
    model = MODELS / "dream-tiny-2l"
    adapter = save_draft_adapter(tmp_path / "adapter", model, ["o_proj"], mask_token=127)
    with pytest.raises(CheckpointError, match="trainable_token_indices"):
        load_model(model, dtype=torch.float32, device="cpu", lora=adapter)
    assert replace(spec_of(model, adapter).model, draft_widths=()) == spec_of(model, None).model
