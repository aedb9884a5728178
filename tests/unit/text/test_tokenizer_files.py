"""Tokenizer files in the published layouts, read by transformers, and no code of a folder runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from transformers import BertTokenizer, GPT2Tokenizer

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.text import tokenizer_limits
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer
from lopa_ray.text_input import BYTE_ORDER_MARK
from support.tokenizer_folders import SPECIAL, THINK, opened, user, write_qwen2, write_whole

pytestmark = pytest.mark.medium

BERT_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "wor", "##ld", "mask", "[", "]"]


def add_remote_code(folder: Path, class_name: str) -> Path:
    """Code as published folders hold it; returns the file that it would write."""
    written = folder / "written"
    for module in ("tokenization_dream", "configuration_dream"):
        code = f"open({str(written)!r}, 'w').close()\nclass {class_name}: pass\nclass DreamConfig: pass\n"
        (folder / f"{module}.py").write_text(code)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {
        "tokenizer_class": class_name,
        "auto_map": {"AutoTokenizer": [f"tokenization_dream.{class_name}", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    auto_map = {"AutoConfig": "configuration_dream.DreamConfig"}
    (folder / "config.json").write_text(json.dumps({"model_type": "Dream", "auto_map": auto_map}))
    return written


@pytest.mark.parametrize("write", [write_qwen2, write_whole])
@pytest.mark.parametrize("class_name", ["DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_published_files_load_and_their_code_does_not_run(
    tmp_path: Path, write: Any, class_name: str
) -> None:
    first = write(tmp_path)
    chat = user("it's 12 <|mask|>")
    expected = opened(tmp_path).apply_chat_template(chat)
    written = add_remote_code(tmp_path, class_name)
    for file in (*tmp_path.glob("*.json"), *tmp_path.glob("*.txt")):
        file.write_bytes(BYTE_ORDER_MARK + file.read_bytes())
    tokenizer = opened(tmp_path)
    assert tokenizer.apply_chat_template(chat) == expected
    assert tokenizer.added_tokens[first + 3] == ("<|mask|>", True)
    assert not written.exists()


def test_a_class_of_the_folder_alone_is_refused(tmp_path: Path) -> None:
    write_qwen2(tmp_path)
    written = add_remote_code(tmp_path, "NewTokenizer")
    with pytest.raises(
        CheckpointError, match=r"vocab\.json and merges\.txt.*not run.*tokenizer\.json"
    ) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert "trust_remote_code" not in str(caught.value)
    assert not written.exists()


def test_other_layouts_are_read_by_the_class_that_they_name(tmp_path: Path) -> None:
    write_qwen2(tmp_path, tokenizer_class="GPT2Tokenizer")
    reference = GPT2Tokenizer.from_pretrained(tmp_path)
    tokenizer = opened(tmp_path)
    assert tokenizer.encode("hello world 1234") == reference.encode("hello world 1234")
    assert not set(tokenizer.encode("<|mask|>")) & tokenizer.added_tokens.keys()
    chat = user(" hello world")
    encoded = reference.apply_chat_template(chat, add_generation_prompt=True)
    assert tokenizer.apply_chat_template(chat) == encoded["input_ids"]


def test_a_list_of_words_is_a_layout(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_WORDS))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = opened(tmp_path)
    assert tokenizer.encode("hello world") == BertTokenizer.from_pretrained(tmp_path).encode("hello world")
    assert [tokenizer.token_string(i) for i in tokenizer.encode("[MASK]")[1:-1]] == ["[", "mask", "]"]
    assert tokenizer.added_tokens[4] == ("[MASK]", True)
    assert not tokenizer.byte_level and not tokenizer.has_chat_template


@pytest.mark.parametrize(
    ("class_name", "said"),
    [
        ("LlamaTokenizer", r"tokenizer\.model: no such file"),  # it would know three words
        ("CTRLTokenizer", r"vocab\.json and merges\.txt: CTRLTokenizer .*tokenizer\.json"),  # in Python
        ("UnknownTokenizer", r"vocab\.json and merges\.txt: cannot be read.*tokenizer\.json"),
    ],
)
def test_layouts_that_cannot_be_read_are_refused(tmp_path: Path, class_name: str, said: str) -> None:
    write_qwen2(tmp_path, tokenizer_class=class_name)
    with pytest.raises(CheckpointError, match=said):
        opened(tmp_path)


def test_a_whole_file_is_read_as_it_is(tmp_path: Path) -> None:
    write_whole(tmp_path, tokenizer_class="LlamaTokenizer", split_special_tokens=True)
    whole = Backend.from_file(str(tmp_path / "tokenizer.json"))
    whole.no_truncation()
    for text in ("hello world 1234 o'clock", "<|mask|> x"):
        assert opened(tmp_path).encode_markup(text) == whole.encode(text).ids


def test_all_files_together_may_not_add_too_many_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_limits, "LARGEST_ADDED", 20)
    write_whole(tmp_path, additional_special_tokens=[f"<unused{i}>" for i in range(15)])
    assert len(opened(tmp_path).added_tokens) == 20
    write_whole(tmp_path, additional_special_tokens=[f"<unused{i}>" for i in range(16)])
    with pytest.raises(CheckpointError, match="got 21 added tokens; allowed: 20"):
        opened(tmp_path)


def test_a_token_with_a_role_is_special_even_if_not_marked(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path, mask_token=THINK)
    tokenizer = opened(tmp_path)
    assert first + 4 not in tokenizer.encode(THINK)
    assert tokenizer.decode([first + 4]) == ""


def test_older_files_list_added_tokens_apart(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path, added_tokens_decoder=None)
    (tmp_path / "added_tokens.json").write_text(json.dumps({SPECIAL[0]: first, SPECIAL[3]: first + 1}))
    tokenizer = opened(tmp_path)
    assert tokenizer.token_text(first + 1) == "<|mask|>"
    assert first + 1 not in tokenizer.encode("<|mask|>")


def test_a_missing_tokenizer_matters_only_for_text(tmp_path: Path) -> None:
    assert Tokenizer.from_pretrained(tmp_path) is None
    with pytest.raises(PromptError, match=r"no tokenizer .*tokenizer\.json"):
        require_tokenizer(None)


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path)
    elsewhere = {str(first + 5): {"content": "<|mask|>", "special": True}}
    for settings, said in (
        ({"chat_template": {"default": 7}}, "chat_template of type dict"),
        ({"chat_template": [{"name": "default"}]}, "cannot be read as a tokenizer"),
        ({"added_tokens_decoder": [1]}, r"tokenizer_config\.json.*added tokens"),
        ({"added_tokens_decoder": {"x": {}}}, r"tokenizer_config\.json.*added tokens"),
        ({"added_tokens_decoder": {str(first): {}}}, r"tokenizer_config\.json.*added tokens"),
        ({"added_tokens_decoder": elsewhere}, rf"id {first + 5}.*gives it {first}"),
    ):
        write_qwen2(tmp_path, **settings)
        with pytest.raises(CheckpointError, match=said):
            opened(tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    write_qwen2(tmp_path)
    (tmp_path / "merges.txt").write_text("a b c")
    with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt: cannot be read as a tokenizer"):
        opened(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"merges\.txt: no such file.*vocab\.json and merges\.txt"):
        opened(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"]
)
def test_broken_files_beside_a_vocabulary_are_named(tmp_path: Path, name: str) -> None:
    write_qwen2(tmp_path, added_tokens_decoder=None)
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.") + ": cannot be read"):
        Tokenizer.from_pretrained(tmp_path)
