"""Weights that change while a LocalEngine runs, its pauses and its sleeps."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray import LocalEngine
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decoding.verified.verified_session import VerifiedSession
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.protocol.events import RequestStep
from lopa_ray.scheduling.journal import Journal
from support.changed_weights import PROMPT, changed_tensors, folder_of, fresh, tokens
from support.fp8_checkpoints import LAYOUTS, save_fp8
from support.paths import MODELS
from support.tiny_model import ALL_MODELS, CANVAS_MODEL, PROMPTS, SETTINGS, tiny_config

HEAD = "model.layers.0.mlp.down_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"

torch.set_num_threads(1)


def adapter(folder: Path, seed: int = 3) -> Path:
    """A PEFT adapter of two layers of the demo model, with large updates."""
    generator = torch.Generator().manual_seed(seed)
    tensors, weights = {}, load_file(DEMO_MODEL / "model.safetensors")
    for layer in ("model.layers.0.mlp.down_proj", "model.layers.3.self_attn.q_proj"):
        outputs, inputs = weights[f"{layer}.weight"].shape
        name = f"base_model.model.{layer}.lora"
        tensors[f"{name}_A.weight"] = torch.randn(4, inputs, generator=generator)
        tensors[f"{name}_B.weight"] = torch.randn(outputs, 4, generator=generator) * 0.1
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ".*(down|q)_proj"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "model",
    [{}, {"dtype": "bfloat16"}, {"quantization": "w8a8"}, {"quantization": "w8"}, {"lora": ""}],
    ids=lambda model: next(iter(model.values()), "fp32"),
)
def test_tokens_are_those_of_a_new_engine(
    model: dict[str, Any], changed_folder: Path, tmp_path: Path
) -> None:
    """From a folder, a mapping, and back to the weights of the start; an adapter of the start is not of the folder."""
    if "lora" in model:
        model["lora"] = str(adapter(tmp_path / "first"))
    of_folder = {name: value for name, value in model.items() if name != "lora"}
    with LocalEngine.from_pretrained("demo", **model) as engine:
        old = tokens(engine)
        assert engine.weight_version == 0
        assert engine.update_weights(changed_folder) == engine.weight_version == 1
        assert tokens(engine) == fresh(changed_folder, **of_folder) != old
        assert engine.update_weights(DEMO_MODEL) == 2
        assert tokens(engine) == fresh(**of_folder)
        assert engine.update_weights(changed_tensors(), version=7) == 7
        assert tokens(engine) == fresh(changed_folder, **of_folder)


def test_some_tensors_change_and_the_others_stay(demo_engine: LocalEngine, tmp_path: Path) -> None:
    """Also over a mapping before; a trainer's own tensors may change afterwards."""
    start, new, newer = load_file(DEMO_MODEL / "model.safetensors"), changed_tensors(1), changed_tensors(2)
    demo_engine.update_weights({name: torch.nn.Parameter(new[name]) for name in (HEAD, NORM)})
    assert tokens(demo_engine) == fresh(
        folder_of({**start, HEAD: new[HEAD], NORM: new[NORM]}, tmp_path / "some")
    )
    embedding = "model.embed_tokens.weight"
    given = {HEAD: newer[HEAD].double(), embedding: newer[embedding].clone()}
    demo_engine.update_weights(given)
    given[embedding].zero_()
    both = {**start, NORM: new[NORM], HEAD: newer[HEAD], embedding: newer[embedding]}
    if torch.equal(start["lm_head.weight"], start[embedding]):
        both["lm_head.weight"] = newer[embedding]
    expected = fresh(folder_of(both, tmp_path / "both"))
    assert tokens(demo_engine) == expected
    demo_engine.sleep(2)
    demo_engine.wake_up()
    assert tokens(demo_engine) == expected


def test_an_adapter_is_merged_over_the_weights_of_the_start(changed_folder: Path, tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "first", 1), adapter(tmp_path / "second", 2)
    with LocalEngine.from_pretrained("demo") as engine:
        engine.update_weights(changed_folder)
        engine.update_weights(first)
        assert tokens(engine) == fresh(lora=str(first)) != fresh()
        engine.update_weights(second)
        assert tokens(engine) == fresh(lora=str(second))
        # A given tensor is whole: no adapter changes it.
        new = changed_tensors()
        engine.update_weights({HEAD: new[HEAD]})
        of_start = {**load_file(DEMO_MODEL / "model.safetensors"), HEAD: new[HEAD]}
        with LocalEngine.from_pretrained(folder_of(of_start, tmp_path / "given")) as other:
            other.update_weights(second)
            assert tokens(other) != tokens(engine)
    with LocalEngine.from_pretrained("demo", lora=str(first)) as engine:
        engine.update_weights(second)
        both = tokens(engine)
        assert both not in (fresh(lora=str(first)), fresh(lora=str(second)))


def _raw(engine: LocalEngine) -> Tensor:
    return engine.runner.logits([1, 2, 3, 4] * 4)


def _engine(folder: Path, **model: Any) -> LocalEngine:
    return LocalEngine.from_config(tiny_config(model={"path": str(folder), "max_model_len": 64, **model}))


def _perturbed(folder: Path, to: Path, names: Callable[[list[str]], list[str]] = list) -> dict[str, Tensor]:
    """Saves a checkpoint with noise on those of its tensors; returns these."""
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(folder / "model.safetensors")
    floating = sorted(
        name for name, tensor in tensors.items() if tensor.is_floating_point() and "scale" not in name
    )
    changed = {}
    for name in names(floating):
        noise = torch.randn(tensors[name].shape, generator=generator) * tensors[name].float().std(
            correction=0
        )
        changed[name] = (tensors[name].float() + 0.2 * noise).to(tensors[name].dtype)
    shutil.copytree(folder, to)
    save_file({**tensors, **changed}, to / "model.safetensors", metadata={"format": "pt"})
    return changed


@pytest.mark.parametrize(
    ("name", "model"),
    [
        *((name, {}) for name in (*ALL_MODELS, CANVAS_MODEL.name)),
        ("dream-tiny-2l", {"quantization": "w8"}),
        ("dream-tiny-2l", {"quantization": "w8a8"}),
        ("dream-tiny-2l", {"dtype": "bfloat16"}),
        ("dream-tiny-2l", {"implementation": "transformers"}),
    ],
)
def test_every_model_has_the_bits_of_a_new_engine(name: str, model: dict[str, Any], tmp_path: Path) -> None:
    """From a folder, from all tensors, and from half of them."""
    folder = MODELS / name
    every = _perturbed(folder, tmp_path / "every")
    half = _perturbed(folder, tmp_path / "half", lambda names: names[::2])
    engine = _engine(folder, **model)
    old, expected = _raw(engine), _raw(_engine(tmp_path / "every", **model))
    assert not torch.equal(old, expected)
    engine.update_weights(tmp_path / "every")
    assert torch.equal(_raw(engine), expected)
    engine.update_weights(folder)
    assert torch.equal(_raw(engine), old)
    engine.update_weights(half)
    assert torch.equal(_raw(engine), _raw(_engine(tmp_path / "half", **model)))
    engine.update_weights(every)
    assert torch.equal(_raw(engine), expected)


def test_floating_tensors_take_the_place_of_fp8(tmp_path: Path) -> None:
    stored, plain = save_fp8("dream-tiny-2l", LAYOUTS["blocks"], tmp_path)
    engine, floating = _engine(stored), load_file(plain / "model.safetensors")
    expected = _raw(engine)
    in_fp8 = [
        name for name, tensor in load_file(stored / "model.safetensors").items() if tensor.itemsize == 1
    ]
    engine.update_weights({name: floating[name] for name in in_fp8[::2]})
    assert torch.equal(_raw(engine), expected)


def _wrong_shape(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors[HEAD][:-1].clone()


def _missing(tensors: dict[str, Tensor]) -> None:
    del tensors[HEAD]


def _unknown(tensors: dict[str, Tensor]) -> None:
    tensors["model.layers.0.mlp.down_proj.extra"] = tensors[HEAD].clone()


def _integers(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors[HEAD].to(torch.int8)


def _quantized(tensors: dict[str, Tensor]) -> None:
    tensors[HEAD] = tensors[HEAD].to(torch.float8_e4m3fn)
    tensors[f"{HEAD}_scale"] = torch.ones(len(tensors[HEAD]), 1)


@pytest.mark.parametrize("spoil", [_wrong_shape, _missing, _unknown, _integers, _quantized])
def test_a_tensor_that_does_not_fit_is_named_and_changes_nothing(
    spoil: Any, demo_engine: LocalEngine, tmp_path: Path
) -> None:
    old, tensors = tokens(demo_engine), changed_tensors()
    spoil(tensors)
    with pytest.raises(CheckpointError, match=HEAD.removesuffix("weight")):
        demo_engine.update_weights(folder_of(tensors, tmp_path / "spoiled"))
    if spoil is not _missing:  # of a mapping the others stay
        with pytest.raises(CheckpointError, match=HEAD.removesuffix("weight")):
            demo_engine.update_weights(tensors)
    assert tokens(demo_engine) == old
    assert demo_engine.weight_version == 0


def test_another_model_or_source_or_version_is_refused(
    demo_engine: LocalEngine, changed_folder: Path, tmp_path: Path
) -> None:
    old = tokens(demo_engine)
    other = folder_of(changed_tensors(), tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    with pytest.raises(CheckpointError, match="rope_theta"):
        demo_engine.update_weights(other)
    with pytest.raises(CheckpointError, match="no such folder") as refused:
        demo_engine.update_weights(tmp_path / "nothing")
    assert "Hub" not in str(refused.value)
    tensor = changed_tensors()[HEAD]
    unusable = [{1: tensor}, {HEAD: tensor.to_sparse()}, {HEAD: tensor.to("meta")}, {HEAD: [1.0]}]
    sources: list[Any] = [{}, None, 3, "", *unusable]
    for source in sources:
        with pytest.raises(SettingsError, match="source"):
            demo_engine.update_weights(source)
    demo_engine.update_weights(changed_folder, version=5)
    for version in (5, 4, -1, True, 6.5):
        with pytest.raises(SettingsError, match="version"):
            demo_engine.update_weights(DEMO_MODEL, version=version)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="running"):
        demo_engine.update_weights(DEMO_MODEL, running="later")  # type: ignore[arg-type]
    assert demo_engine.weight_version == 5
    demo_engine.update_weights(DEMO_MODEL)
    assert tokens(demo_engine) == old


@pytest.mark.parametrize(
    "name", ["two_phase", "single_phase", "verified", "sampled", "prefix_cache", "joint_speculation"]
)
def test_kept_requests_go_on_as_on_an_engine_with_the_new_weights(name: str, tmp_path: Path) -> None:
    """That gets the request as a group does which takes the place of a lost one."""
    folder = MODELS / "dream-tiny-4l"
    _perturbed(folder, tmp_path / "new")
    engine, other = _engine(folder, max_model_len=160), _engine(tmp_path / "new", max_model_len=160)
    session = engine.create_session(PROMPTS[2], SETTINGS[name])
    journal, events = Journal(copy.copy(session)), engine.events([session])
    for _ in range(4):
        event = next(events)
        assert isinstance(event, RequestStep)
        journal.record(event.plan, event.outcome, session.export_state())
    engine.update_weights(tmp_path / "new", running="keep")
    seen = [event.outcome for event in events if isinstance(event, RequestStep)]
    assert {outcome.weight_version for outcome in seen} == {1}
    restored = journal.restored_session()
    if isinstance(restored, VerifiedSession):
        restored._states.distrust()
    expected = [event.outcome for event in other.events([restored]) if isinstance(event, RequestStep)]
    assert [replace(outcome, weight_version=0) for outcome in seen] == expected
    with_old = [
        event.outcome for event in _engine(folder, max_model_len=160).events([journal.restored_session()])
    ]  # type: ignore[union-attr]
    assert [outcome.canvas for outcome in seen] != [outcome.canvas for outcome in with_old]


def test_a_trajectory_lists_the_version_of_each_token(demo_engine: LocalEngine, changed_folder: Path) -> None:
    chunks = demo_engine.stream(PROMPT, trajectory=True)
    first = next(chunks)
    demo_engine.update_weights(changed_folder, running="keep")
    *_, last = chunks
    assert last.result is not None
    trajectory = last.result.trajectory
    assert trajectory is not None
    assert trajectory.weight_version == 1
    assert trajectory.weight_versions is not None
    old = {index for index, version in enumerate(trajectory.weight_versions) if version == 0}
    assert old == {index for index, step in enumerate(trajectory.step_map) if step == 1}
    decided = {
        index for index, token in enumerate(first.canvas) if token != demo_engine.vocabulary.mask_token_id
    }
    assert decided & {*range(len(trajectory.step_map))} <= old  # a winner's token ahead is of the step before


def test_stored_prefixes_are_gone(changed_folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", prefix_cache="approximate") as engine:
        tokens(engine)
        assert engine.runner.slots.prefixes
        engine.reset_prefix_cache()
        assert not engine.runner.slots.prefixes
        tokens(engine)
        hits = engine.prefix_index.hit_requests
        engine.update_weights(changed_folder)
        assert not engine.runner.slots.prefixes
        assert tokens(engine) == fresh(changed_folder)
        assert engine.prefix_index.hit_requests == hits
        chunks = engine.stream(PROMPT + " Really?")
        next(chunks)
        engine.reset_prefix_cache()
        assert not engine.runner.slots.prefixes
        assert list(chunks)[-1].result is not None


def test_a_copy_of_tied_embeddings_has_to_equal_those_it_came_with() -> None:
    model = MODELS / "llama-tiny-2l"
    tensors, copy = load_file(model / "model.safetensors"), "lm_head.weight"
    (embeddings,) = (name for name in tensors if "embed" in name)
    engine = LocalEngine.from_pretrained(model)
    engine.update_weights({embeddings: tensors[embeddings] * 2, copy: tensors[embeddings] * 2})
    engine.update_weights({embeddings: tensors[embeddings]})
    engine.update_weights(tensors)
    for changed in (
        {copy: tensors[embeddings] * 3},
        {embeddings: tensors[embeddings] * 3, copy: tensors[embeddings]},
    ):
        with pytest.raises(CheckpointError, match="differs from"):
            engine.update_weights(changed)
    assert engine.weight_version == 3
