"""Models that only transformers has: under its own model types, and as rows of the table of families."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from cluster.cli import app
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.transformers_models.families import TransformersFamily
from support.checkpoints import edit_json, shard
from support.transformers_checkpoints import bidirectional_logits, runner_of, save_checkpoint

pytestmark = pytest.mark.medium

IDS = random.Random(0).choices(range(120), k=40)

torch.set_num_threads(1)


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen3_moe", {}),
        ("glm4_moe", {}),  # rotates half of each head
        ("qwen2", {"tie_word_embeddings": True}),
        ("granite", {"attention_multiplier": 0.125}),  # another scale of scores
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("mixtral", {"num_local_experts": 4, "sliding_window": None}),
    ],
)
def test_logits_are_those_of_transformers_itself(model_type: str, changes: dict, tmp_path: Path) -> None:
    reference = save_checkpoint(model_type, tmp_path, **changes)
    runner = runner_of(tmp_path)
    expected = bidirectional_logits(reference, IDS)
    assert expected.std() > 0.5
    torch.testing.assert_close(runner.logits(IDS), expected, atol=1e-4, rtol=0)
    # The rows behind a cached prefix are those of the whole where the prefix sees itself alone.
    runner.logits(IDS[:16], to_stage=(range(16),))
    behind = runner.logits(IDS[16:], start=16)
    blocks = runner.logits(IDS, segments=((16, 16), (40, 40)))
    torch.testing.assert_close(behind, blocks[16:], atol=1e-4, rtol=0)
    torch.testing.assert_close(blocks[:16], bidirectional_logits(reference, IDS[:16]), atol=1e-4, rtol=0)


def test_attention_is_handed_rows_that_lie_one_behind_the_other(tmp_path: Path) -> None:
    """Kernels compute addresses from shapes. GLM's class has queries and keys head by head."""
    save_checkpoint("glm4_moe", tmp_path)
    model = runner_of(tmp_path).model
    kv = torch.zeros(3, 2, 5, 2, 16)
    layers = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert (q.shape, k.shape, v.shape) == ((5, 4, 16), (5, 2, 16), (5, 2, 16))
        assert q.is_contiguous() and k.is_contiguous() and v.is_contiguous()
        assert torch.equal(kv[layer], torch.stack((k, v)))
        layers.append(layer)
        return torch.zeros_like(q)

    with torch.inference_mode():
        hidden = model(torch.arange(5), torch.tensor([4, 9, 0, 1, 2]), attend, kv)
    assert (layers, hidden.shape) == ([0, 1, 2], (5, 64))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"hidden_act": "nope"}, "cannot make a llama model of its configuration .*nope"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0; it must be an integer above 0"),
        ({"rope_scaling": {"rope_type": "foo"}}, "foo"),
        ({"model_type": ["x"]}, "no causal language model"),
    ],
)
def test_what_a_class_cannot_be_made_of_is_said(changes: dict, part: str, tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(CheckpointError, match=part):
        LocalEngine.from_pretrained(tmp_path, max_model_len=64)
    assert CliRunner().invoke(app, ["models", str(tmp_path)]).exit_code == 2


def test_attention_that_is_not_computed_here_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    save_checkpoint("stablelm", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be run by transformers as StableLm"):
        LocalEngine.from_pretrained(tmp_path, max_model_len=64)
    assert CliRunner().invoke(app, ["models", str(tmp_path)]).exit_code == 2


SHORT = LopaSettings(max_new_tokens=32, block_size=8)


def test_learned_positions_bound_the_length_of_a_request(tmp_path: Path) -> None:
    save_checkpoint("gpt2", tmp_path, max_position_embeddings=48, num_key_value_heads=4)
    assert LocalEngine.from_pretrained(tmp_path, max_model_len=48).generate([1] * 16, SHORT).tokens
    with pytest.raises(SettingsError, match=r"max_model_len: got 64 .* has 48 positions"):
        LocalEngine.from_pretrained(tmp_path, max_model_len=64)


def test_shards_of_experts_load_as_one_file_does(tmp_path: Path) -> None:
    save_checkpoint("qwen3_moe", tmp_path)
    whole = runner_of(tmp_path).logits(IDS)
    shard(tmp_path)
    assert torch.equal(runner_of(tmp_path).logits(IDS), whole)


def test_weights_of_experts_are_counted_and_drawn(tmp_path: Path) -> None:
    save_checkpoint("glm4_moe", tmp_path)
    published = load_file(tmp_path / "model.safetensors")
    drawn = runner_of(tmp_path, load_format="dummy", dtype="bfloat16")
    model = drawn.model.causal_lm
    count = sum(p.numel() for p in model.parameters()) + sum(
        b.numel() for name, b in model.named_buffers() if name in model.state_dict()
    )
    assert count == sum(tensor.numel() for tensor in published.values())
    assert drawn.logits(IDS).isfinite().all()


def test_no_code_of_a_checkpoint_runs(tmp_path: Path) -> None:
    save_checkpoint("llama", tmp_path)
    expected = runner_of(tmp_path).logits(IDS)
    for name in ("configuration_evil", "modeling_evil"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit_json(
        tmp_path / "config.json",
        auto_map={"AutoConfig": "configuration_evil.C", "AutoModelForCausalLM": "modeling_evil.M"},
        _attn_implementation="org/kernels",
        experts_implementation="org/kernels",
    )
    assert torch.equal(runner_of(tmp_path).logits(IDS), expected)
    assert not (tmp_path / "ran").exists()


# Rows of the table


def test_sdar_moe_is_qwen3_moe_by_another_name(tmp_path: Path) -> None:
    """Which the project's own transformer runs: it has another order of additions."""
    save_checkpoint("qwen3_moe", tmp_path, vocab_size=151_670, mask_token_id=None)
    own_name = {"mask_token_id": 151_669}
    edit_json(tmp_path / "config.json", **own_name)
    expected = runner_of(tmp_path).logits(IDS)
    names = {"model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"]}
    # As published; the installed transformers calls these otherwise.
    published = {"rope_parameters": ..., "rope_theta": 10000.0, "num_experts": 8}
    edit_json(tmp_path / "config.json", mask_token_id=..., **published, **names)
    config = load_config(tmp_path, "auto")
    assert (config.family, config.shifted, config.mask_token_id) == ("sdar_moe", False, 151_669)
    assert config.implementation == "native"
    torch.testing.assert_close(runner_of(tmp_path).logits(IDS), expected, atol=1e-4, rtol=1e-4)


def test_a_row_is_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new model on its first day: a published name, a mask token and a shift."""
    save_checkpoint("qwen3", tmp_path)
    expected = runner_of(tmp_path).logits(IDS)
    names = {"model_type": "new", "architectures": ["NewModel"]}
    edit_json(tmp_path / "config.json", **names, mask_token_id=...)
    row = TransformersFamily(
        name="new_model",
        model_type="new",
        architecture="NewModel",
        runs_as="qwen3",
        checked_against="nothing",
        shifted=True,
        mask_token_id=99,
    )
    monkeypatch.setattr("lopa_ray.model.transformers_models.config.TRANSFORMERS_FAMILIES", (row,))
    config = load_config(tmp_path, "auto")
    assert (config.family, config.shifted, config.mask_token_id) == ("new_model", True, 99)
    assert torch.equal(runner_of(tmp_path).logits(IDS), expected)
