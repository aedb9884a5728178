"""Weights that change while a LocalEngine runs, its pauses and its sleeps."""

from __future__ import annotations

import copy
import json
import shutil
import threading
from collections.abc import Callable, Iterator
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
from lopa_ray.errors import CheckpointError, LopaError, RequestCancelledError, SettingsError
from lopa_ray.protocol.events import RequestStep
from lopa_ray.scheduling.journal import Journal
from support.fp8_checkpoints import LAYOUTS, save_fp8
from support.paths import MODELS
from support.tiny_model import ALL_MODELS, CANVAS_MODEL, PROMPTS, SETTINGS, tiny_config

PROMPT = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"
HEAD = "model.layers.0.mlp.down_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"

torch.set_num_threads(1)


def changed_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(DEMO_MODEL / "model.safetensors")
    noise = {name: torch.randn(t.shape, generator=generator) for name, t in sorted(tensors.items())}
    return {name: (t.float() + 0.03 * noise[name]).to(t.dtype) for name, t in tensors.items()}


def folder_of(tensors: dict[str, Tensor], folder: Path) -> Path:
    shutil.copytree(DEMO_MODEL, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(changed_tensors(), tmp_path_factory.mktemp("weights") / "changed")


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.from_pretrained("demo") as engine:
        yield engine


def tokens(engine: LocalEngine, **settings: Any) -> list[int]:
    return engine.generate(PROMPT, **settings).token_ids


def fresh(path: str | Path = "demo", **model: Any) -> list[int]:
    with LocalEngine.from_pretrained(path, **model) as engine:
        return tokens(engine)


@pytest.mark.parametrize(
    "model",
    [{}, {"dtype": "bfloat16"}, {"quantization": "w8a8"}, {"quantization": "w8"}, {"lora": ""}],
    ids=lambda model: next(iter(model.values()), "fp32"),
)
def test_tokens_are_those_of_a_new_engine(model: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """From a folder, a mapping, and back to the weights of the start; an adapter of the start is not of the folder."""
    if "lora" in model:
        model["lora"] = str(adapter(tmp_path / "first"))
    of_folder = {name: value for name, value in model.items() if name != "lora"}
    with LocalEngine.from_pretrained("demo", **model) as engine:
        old = tokens(engine)
        assert engine.weight_version == 0
        assert engine.update_weights(folder) == engine.weight_version == 1
        assert tokens(engine) == fresh(folder, **of_folder) != old
        assert engine.update_weights(DEMO_MODEL) == 2
        assert tokens(engine) == fresh(**of_folder)
        assert engine.update_weights(changed_tensors(), version=7) == 7
        assert tokens(engine) == fresh(folder, **of_folder)


def test_some_tensors_change_and_the_others_stay(engine: LocalEngine, tmp_path: Path) -> None:
    """Also over a mapping before; a trainer's own tensors may change afterwards."""
    start, new, newer = load_file(DEMO_MODEL / "model.safetensors"), changed_tensors(1), changed_tensors(2)
    engine.update_weights({name: torch.nn.Parameter(new[name]) for name in (HEAD, NORM)})
    assert tokens(engine) == fresh(folder_of({**start, HEAD: new[HEAD], NORM: new[NORM]}, tmp_path / "some"))
    embedding = "model.embed_tokens.weight"
    given = {HEAD: newer[HEAD].double(), embedding: newer[embedding].clone()}
    engine.update_weights(given)
    given[embedding].zero_()
    both = {**start, NORM: new[NORM], HEAD: newer[HEAD], embedding: newer[embedding]}
    if torch.equal(start["lm_head.weight"], start[embedding]):
        both["lm_head.weight"] = newer[embedding]
    expected = fresh(folder_of(both, tmp_path / "both"))
    assert tokens(engine) == expected
    engine.sleep(2)
    engine.wake_up()
    assert tokens(engine) == expected


def test_an_adapter_is_merged_over_the_weights_of_the_start(folder: Path, tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "first", 1), adapter(tmp_path / "second", 2)
    with LocalEngine.from_pretrained("demo") as engine:
        engine.update_weights(folder)
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
    spoil: Any, engine: LocalEngine, tmp_path: Path
) -> None:
    old, tensors = tokens(engine), changed_tensors()
    spoil(tensors)
    with pytest.raises(CheckpointError, match=HEAD.removesuffix("weight")):
        engine.update_weights(folder_of(tensors, tmp_path / "spoiled"))
    if spoil is not _missing:  # of a mapping the others stay
        with pytest.raises(CheckpointError, match=HEAD.removesuffix("weight")):
            engine.update_weights(tensors)
    assert tokens(engine) == old
    assert engine.weight_version == 0


def test_another_model_or_source_or_version_is_refused(
    engine: LocalEngine, folder: Path, tmp_path: Path
) -> None:
    old = tokens(engine)
    other = folder_of(changed_tensors(), tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rope_theta": 12345.0}))
    with pytest.raises(CheckpointError, match="rope_theta"):
        engine.update_weights(other)
    with pytest.raises(CheckpointError, match="no such folder"):
        engine.update_weights(tmp_path / "nothing")
    sources: list[Any] = [{}, None, 3, {HEAD: [1.0]}]
    for source in sources:
        with pytest.raises(SettingsError, match="source"):
            engine.update_weights(source)
    engine.update_weights(folder, version=5)
    for version in (5, 4, -1, True, 6.5):
        with pytest.raises(SettingsError, match="version"):
            engine.update_weights(DEMO_MODEL, version=version)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="running"):
        engine.update_weights(DEMO_MODEL, running="later")  # type: ignore[arg-type]
    assert engine.weight_version == 5
    engine.update_weights(DEMO_MODEL)
    assert tokens(engine) == old


def test_requests_that_have_begun_end_first_and_others_wait(folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_num_seqs=1) as engine:
        old = tokens(engine)
        begun = engine.stream(PROMPT, trajectory=True)
        next(begun)
        waiting = engine.events([engine.create_session(PROMPT)])
        holding, hold = threading.Event(), engine._hold
        engine._hold = lambda *hold_for: (holding.set(), hold(*hold_for))  # type: ignore[assignment, func-returns-value]
        with engine._changed:  # no step, and so no hold, before this thread waits for an event
            threading.Thread(target=engine.update_weights, args=(folder,)).start()
            assert holding.wait(60)
        last = [event.outcome for event in waiting][-1]  # type: ignore[union-attr]
        assert engine.weight_version == 1
        assert last.weight_version == 1
        *_, chunk = begun
        assert chunk.result is not None
        assert chunk.result.token_ids == old
        trajectory = chunk.result.trajectory
        assert trajectory is not None
        assert (trajectory.weight_version, trajectory.weight_versions) == (0, None)
        assert tokens(engine) == fresh(folder)


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


def test_a_trajectory_lists_the_version_of_each_token(engine: LocalEngine, folder: Path) -> None:
    chunks = engine.stream(PROMPT, trajectory=True)
    first = next(chunks)
    engine.update_weights(folder, running="keep")
    *_, last = chunks
    assert last.result is not None
    trajectory = last.result.trajectory
    assert trajectory is not None
    assert trajectory.weight_version == 1
    assert trajectory.weight_versions is not None
    old = {index for index, version in enumerate(trajectory.weight_versions) if version == 0}
    assert old == {index for index, step in enumerate(trajectory.step_map) if step == 1}
    decided = {index for index, token in enumerate(first.canvas) if token != engine.vocabulary.mask_token_id}
    assert decided & {*range(len(trajectory.step_map))} <= old  # a winner's token ahead is of the step before


def test_aborted_requests_end_and_others_wait(folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_num_seqs=1) as engine:
        begun, waiting = engine.stream(PROMPT), engine.events([engine.create_session(PROMPT)])
        next(begun)
        engine.update_weights(folder, running="abort")
        with pytest.raises(RequestCancelledError):
            list(begun)
        assert not any(hasattr(event, "error") for event in waiting)
        assert tokens(engine) == fresh(folder)


def test_stored_prefixes_are_gone(folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", prefix_cache="approximate") as engine:
        tokens(engine)
        assert engine.runner.slots.prefixes
        engine.reset_prefix_cache()
        assert not engine.runner.slots.prefixes
        tokens(engine)
        hits = engine.prefix_index.hit_requests
        engine.update_weights(folder)
        assert not engine.runner.slots.prefixes
        assert tokens(engine) == fresh(folder)
        assert engine.prefix_index.hit_requests == hits
        chunks = engine.stream(PROMPT + " Really?")
        next(chunks)
        engine.reset_prefix_cache()
        assert not engine.runner.slots.prefixes
        assert list(chunks)[-1].result is not None


def test_no_step_begins_during_a_pause(engine: LocalEngine, folder: Path) -> None:
    old = tokens(engine)
    chunks = engine.stream(PROMPT)
    next(chunks)
    engine.pause("keep")
    assert engine.is_paused()
    with pytest.raises(SettingsError, match="pause"):
        engine.update_weights(folder, running="wait")
    assert engine.weight_version == 0
    ended = threading.Event()
    results: list[list[int]] = []

    def rest() -> None:
        results.append(list(chunks)[-1].result.token_ids)  # type: ignore[union-attr]
        ended.set()

    threading.Thread(target=rest, daemon=True).start()
    runs = engine.runner.launch
    engine.runner.launch = lambda *_: pytest.fail("a step during a pause")  # type: ignore[method-assign, assignment]
    assert not ended.wait(0.05)
    engine.runner.launch = runs  # type: ignore[method-assign]
    engine.resume()
    assert ended.wait(60)
    assert results == [old]
    engine.pause()
    engine.update_weights(folder)
    assert engine.is_paused()
    engine.resume()
    assert not engine.is_paused()
    assert tokens(engine) == fresh(folder)


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_gives_memory_back_and_the_same_tokens(level: int, folder: Path) -> None:
    with LocalEngine.from_pretrained("demo", max_model_len=512) as engine:
        engine.update_weights(folder)
        expected = tokens(engine)
        chunks = engine.stream(PROMPT)
        next(chunks)
        cache = engine.runner.cache
        engine.sleep(level)
        assert engine.is_sleeping()
        if level == 1:
            assert cache.data.untyped_storage().nbytes() == 0
        else:
            assert not hasattr(engine, "runner")
        engine.sleep(level)
        engine.wake_up()
        assert not engine.is_sleeping()
        assert list(chunks)[-1].result.token_ids == expected  # type: ignore[union-attr]
        assert tokens(engine) == expected


@pytest.mark.parametrize("level", [1, 2])
def test_weights_may_change_during_a_sleep(level: int, engine: LocalEngine, folder: Path) -> None:
    with pytest.raises(SettingsError, match="level"):
        engine.sleep(3)
    engine.sleep(level)
    engine.update_weights(folder)
    assert engine.is_sleeping()
    engine.wake_up()
    assert tokens(engine) == fresh(folder)


def test_a_step_that_fails_meanwhile_ends_its_own_request_alone(engine: LocalEngine, folder: Path) -> None:
    chunks = engine.stream(PROMPT)
    next(chunks)

    def fail(*_: Any) -> None:
        raise LopaError("broken")

    launch = engine.runner.launch
    engine.runner.launch = fail  # type: ignore[method-assign, assignment]
    engine.update_weights(folder)
    with pytest.raises(LopaError, match="broken"):
        list(chunks)
    engine.runner.launch = launch  # type: ignore[method-assign]
    assert tokens(engine) == fresh(folder)
