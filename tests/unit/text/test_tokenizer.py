"""Text and tokens, with tokenizer files in both published layouts."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer as Backend, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from lopa_ray.errors import PromptError
from lopa_ray.text.tokenizer import Tokenizer
from support.tokenizer_folders import SPECIAL, THINK, opened, shown, user, write_qwen2, write_whole

TEXTS = [
    "",
    " ",
    "Hello, world! it's 1234 o'clock",
    "  two  spaces\n\n\ttab \r\n",
    "na\u00efve \u65e5\u672c\u8a9e \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f642\u200d",
    "\x00\x7f",
]
FROM_PICKLE = """
import json, pathlib, pickle, sys
tokenizer = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
found = [tokenizer.apply_chat_template([{"role": "user", "content": "a <|mask|>"}])]
found += [tokenizer.encode("hello <|mask|>"), tokenizer.encode_markup("hello <|mask|>"), "torch" in sys.modules]
print(json.dumps(found))
"""


@pytest.mark.medium
@pytest.mark.parametrize("write", [write_qwen2, write_whole])
@pytest.mark.parametrize("text", [*TEXTS, *SPECIAL, f"a {SPECIAL[2]} b{SPECIAL[3]}{SPECIAL[3]}", THINK])
def test_text_survives_and_never_holds_special_tokens(tmp_path: Path, write: Any, text: str) -> None:
    first = write(tmp_path)
    tokenizer = opened(tmp_path)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(token < first or token == first + len(SPECIAL) for token in ids)
    assert tokenizer.vocab_size == first + len(SPECIAL) + 1


@pytest.mark.parametrize("write", [write_qwen2, write_whole])
def test_special_tokens_are_parsed_if_that_is_asked_for(tmp_path: Path, write: Any) -> None:
    first = write(tmp_path)
    tokenizer = opened(tmp_path)
    text = f"hello {SPECIAL[1]}user{SPECIAL[2]} <|imstart|> {SPECIAL[3]}"
    ids = tokenizer.encode(text, parse_special=True)
    reference = Qwen2Tokenizer if write is write_qwen2 else PreTrainedTokenizerFast
    assert ids == reference.from_pretrained(tmp_path).encode(text)
    assert [token - first for token in ids if first <= token < first + len(SPECIAL)] == [1, 2, 3]


def test_decoding_and_showing_tokens(tmp_path: Path) -> None:
    first = write_qwen2(tmp_path)
    tokenizer = opened(tmp_path)
    ids = [*tokenizer.encode("hello"), first + 3, first + 99]
    assert tokenizer.decode(ids) == "hello"
    assert shown(tokenizer, ids) == "hello<|mask|>"
    assert tokenizer.token_text(first + 3) == "<|mask|>"
    assert tokenizer.token_text(first + 99) == f"[{first + 99}]"


@pytest.mark.medium
@pytest.mark.parametrize("write", [write_qwen2, write_whole])
def test_it_can_be_sent_to_another_process(tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    tokenizer = opened(tmp_path)
    file = tmp_path / "pickled"
    file.write_bytes(pickle.dumps(tokenizer))
    for published in tmp_path.glob("*.*"):  # what is sent needs no files
        published.unlink()
    done = subprocess.run(
        [sys.executable, "-c", FROM_PICKLE, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *encoded, imported_torch = json.loads(done.stdout)
    chat = tokenizer.apply_chat_template(user("a <|mask|>"))
    assert encoded == [chat, tokenizer.encode("hello <|mask|>"), tokenizer.encode_markup("hello <|mask|>")]
    assert not imported_torch


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_encoded_as_transformers_does(tmp_path: Path, text: str) -> None:
    write_qwen2(tmp_path)
    reference = Qwen2Tokenizer.from_pretrained(tmp_path)
    assert opened(tmp_path).encode(text) == reference.encode(text)
    assert opened(tmp_path).encode_markup(f"{text}<|mask|> x") == reference.encode(f"{text}<|mask|> x")


def test_a_space_before_a_text_stands_before_no_part_of_a_chat(tmp_path: Path) -> None:
    words = ["<unk>", "<s>", "</s>", "\u2581", *"helowrdus:\n", "\u2581h", "he"]
    merges = [("\u2581", "h"), ("h", "e")]
    published = LlamaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=merges)
    published.chat_template = (
        "{% for m in messages %}he{{ bos_token }}{{ m.role }}:{{ m.content }}{{ eos_token }}\n{% endfor %}he"
    )
    published.save_pretrained(tmp_path)
    tokenizer, reference = opened(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for chat in (user("hello"), [*user("hello"), *user("helloworld")]):
        expected = reference.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert tokenizer.apply_chat_template(chat) == expected
    written = [tokenizer.token_string(token) for token in tokenizer.apply_chat_template(user("</s>he"))]
    assert written.count("</s>") == 1
    assert tokenizer.encode("hello") == reference.encode("hello", add_special_tokens=False)


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    write_qwen2(tmp_path)
    with pytest.raises(PromptError, match="Unicode"):
        opened(tmp_path).encode("\ud800")
    with pytest.raises(PromptError):
        opened(tmp_path).apply_chat_template(user("\ud800"))


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "\u2581", "\u2581Tom", *"Tomhas3.", *BYTES]
PREPENDED = pre_tokenizers.Metaspace(prepend_scheme="always")


def llama() -> Backend:
    pieces = {piece: at for at, piece in enumerate(dict.fromkeys([*PIECES, "To", "\u2581T", "\u2581To"]))}
    merges = [("\u2581", "T"), ("\u2581T", "o"), ("\u2581To", "m")]
    return LlamaTokenizer(vocab=pieces, merges=merges).backend_tokenizer


def unigram() -> Backend:
    pieces = [(piece, -1.0) for piece in dict.fromkeys(PIECES)]
    backend = Backend(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = PREPENDED
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return backend


def gemma() -> Backend:
    backend = unigram()
    backend.pre_tokenizer, backend.normalizer = None, normalizers.Replace(" ", "\u2581")
    replaced = decoders.Replace("\u2581", " ")
    backend.decoder = decoders.Sequence([replaced, decoders.ByteFallback(), decoders.Fuse()])
    return backend


def wordpiece() -> Backend:
    words = ["[UNK]", "Tom", "has", "3", ".", "##my", "caf", "##\u00e9", "\U0001f642"]
    backend = Backend(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return backend


def byte_level() -> Backend:
    backend = Backend(
        models.BPE({char: at for at, char in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


@pytest.mark.parametrize("backend", [llama, unigram, gemma, wordpiece, byte_level])
@pytest.mark.parametrize(
    "text", ["Tom has 3.", "Tommy caf\u00e9 \U0001f642", "  Tom   Tom", "Tom <think>Tom <end>"]
)
def test_bytes_of_tokens_make_up_the_bytes_of_the_text(backend: Callable[[], Backend], text: str) -> None:
    made = backend()
    made.add_tokens([AddedToken("<think>", lstrip=True, rstrip=True), "two words"])
    made.add_special_tokens(["<end>"])
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made))
    ids = [*tokenizer.encode(text), *made.encode("two words", add_special_tokens=False).ids]
    decoded, of_tokens = tokenizer.decode(ids).encode(), b"".join(map(tokenizer.token_bytes, ids))
    assert decoded.endswith(b"two words") and of_tokens in (decoded, b" " + decoded)
    for token in ids:
        whole = tokenizer.token_bytes(token).decode(errors="replace")
        assert whole == tokenizer.token_text(token) or len(tokenizer.token_bytes(token)) == 1
    end = made.token_to_id("<end>")
    assert (tokenizer.token_text(end), tokenizer.token_bytes(end)) == ("<end>", b"<end>")


def test_bytes_of_single_tokens() -> None:
    made = llama()
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=made))
    bytes_of = {
        piece: tokenizer.token_bytes(made.token_to_id(piece)) for piece in (*PIECES[1:4], "<0xC3>", "<0x0A>")
    }
    assert list(bytes_of.values()) == [b" ", b" Tom", b"T", b"\xc3", b"\n"]
