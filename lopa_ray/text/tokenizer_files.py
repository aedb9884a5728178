"""Reads the tokenizer files of a checkpoint folder with transformers. Code in the folder is never run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.config_json.json_file import check_file, read_json
from lopa_ray.model.transformers_models.package import import_transformers
from lopa_ray.text.tokenizer_limits import (
    check_added_tokens,
    check_vocabulary,
    panics_as_errors,
    try_tokenizer,
)
from lopa_ray.text_input import BYTE_ORDER_MARK, read_text

if TYPE_CHECKING:
    from transformers import AddedToken, PreTrainedTokenizerFast

_CONFIG, _TEMPLATE, _NAMED_TEMPLATES = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates",
)
_LISTED, _ADDED_TOKENS, _ROLES = "added_tokens_decoder", "added_tokens.json", "special_tokens_map.json"
_WHOLE = "tokenizer.json"
_QWEN2_FILES = ("vocab.json", "merges.txt")
_QWEN2_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast", "DreamTokenizer", None)
_VOCABULARIES = (*_QWEN2_FILES, "vocab.txt", "*.model", "*.tiktoken", "tekken.json")
"""File patterns of the vocabularies of published tokenizers that have no tokenizer.json."""
_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken")
"""Suffixes of all files that transformers may read for a tokenizer."""


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    """The tokenizer in a checkpoint folder, or None if the folder has none. tokenizer.json is read whatever class the
    folder names, Qwen2's vocab.json and merges.txt with Qwen2's class, and any other layout with the class that
    `AutoTokenizer` selects. Raises `CheckpointError` for files that cannot be used."""
    for file in _files(folder):
        check_file(file)
    if (folder / _WHOLE).exists():
        whole = read_json(folder / _WHOLE)
        model = whole.get("model")
        check_vocabulary(folder / _WHOLE, model.get("vocab") if isinstance(model, dict) else None)
        try_tokenizer(folder / _WHOLE, json.dumps(whole))
    check_vocabulary(folder / _QWEN2_FILES[0], _read_optional(folder / _QWEN2_FILES[0]))
    config = _read_optional(folder / _CONFIG)
    layout = _find_layout(folder, config)
    if layout is None:
        return None
    tokens_file = folder / (_CONFIG if _LISTED in config else _ADDED_TOKENS)
    listed = _listed_tokens(tokens_file, config)
    check_added_tokens(tokens_file, listed.values())
    _read_optional(folder / _ROLES)
    _check_templates(folder, config)
    pretrained = _load(folder, *layout)
    backend = pretrained.backend_tokenizer
    if not (folder / _WHOLE).exists():
        try_tokenizer(layout[1][0], backend.to_str())
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = False
    _check_ids(pretrained, listed, tokens_file)
    _mark_tokens(pretrained, config)
    added = backend.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special]
    check_added_tokens(folder, [token.content for token in added], special)
    return pretrained


def template_file(folder: Path, name: str = "default") -> Path:
    file = folder / (_TEMPLATE if name == "default" else f"{_NAMED_TEMPLATES}/{name}.jinja")
    return file if file.exists() else folder / _CONFIG


def _read_optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}


def _files(folder: Path) -> list[Path]:
    files = (*folder.glob("*"), *(folder / _NAMED_TEMPLATES).glob("*"))
    return [file for file in files if file.suffix in _SUFFIXES]


@contextmanager
def _without_byte_order_marks(folder: Path) -> Iterator[Path]:
    """The folder, or one for the time being with the same files without these marks, which transformers cannot read or
    takes for text."""
    files = [file for file in _files(folder) if file.is_file()]
    marked = [file for file in files if file.read_bytes().startswith(BYTE_ORDER_MARK)]
    if not marked:
        yield folder
        return
    with TemporaryDirectory() as name:
        for file in _files(folder):
            copy = Path(name, file.relative_to(folder))
            copy.parent.mkdir(exist_ok=True)
            if file in marked:
                copy.write_bytes(file.read_bytes().removeprefix(BYTE_ORDER_MARK))
            else:
                copy.symlink_to(file.absolute())
        yield Path(name)


def _find_layout(folder: Path, config: Mapping[str, Any]) -> tuple[str, list[Path]] | None:
    """The class of transformers that reads a folder, and the files with its vocabulary; None without such files."""
    if (folder / _WHOLE).exists():
        return "PreTrainedTokenizerFast", [folder / _WHOLE]
    vocabularies = [file for pattern in _VOCABULARIES for file in sorted(folder.glob(pattern))]
    qwen2 = [folder / name for name in _QWEN2_FILES]
    if config.get("tokenizer_class") not in _QWEN2_CLASSES or not set(qwen2) & set(vocabularies):
        # This is the last choice, because AutoTokenizer imports torch and all configuration classes of transformers.
        return ("AutoTokenizer", vocabularies) if vocabularies else None
    _require_files(qwen2, qwen2)
    return "Qwen2Tokenizer", qwen2


def _require_files(needed: list[Path], present: list[Path]) -> None:
    for file in needed:
        if not file.exists():
            raise CheckpointError(
                f"{file}: no such file; the tokenizer in {_names(present)} needs it: download it again"
            )


def _names(files: list[Path]) -> str:
    return " and ".join([str(files[0]), *(file.name for file in files[1:])])


def _load(folder: Path, class_name: str, files: list[Path]) -> PreTrainedTokenizerFast:
    transformers = import_transformers()
    try:
        # Without trust_remote_code=False, AutoTokenizer asks at the terminal whether the folder's code may run.
        with _without_byte_order_marks(folder) as readable, panics_as_errors():
            pretrained = getattr(transformers, class_name).from_pretrained(
                readable, trust_remote_code=False, local_files_only=True
            )
            pretrained.name_or_path = str(folder)
    except Exception as error:  # the libraries raise exceptions of many types
        reason, advice = " ".join(str(error).split()), "download it again"
        if class_name == "AutoTokenizer":
            advice = f"save the tokenizer as {_WHOLE}"
            if "trust_remote_code" in reason:
                reason = f"{_CONFIG} names code of the checkpoint for it, which is not run"
            elif any(file.suffix == ".model" for file in files) and find_spec("sentencepiece") is None:
                reason = "the package sentencepiece is missing"
                advice = f"install it (pip install sentencepiece), or {advice}"
        raise CheckpointError(
            f"{_names(files)}: cannot be read as a tokenizer ({reason}); {advice}"
        ) from None
    if class_name == "AutoTokenizer":
        _check_class(pretrained, folder, files)
    return pretrained


def _check_class(pretrained: Any, folder: Path, files: list[Path]) -> None:
    """Raise CheckpointError if a class is not supported here, or did not find all files that it needs. A class that
    finds none of its files may load without an error, with a vocabulary of a few special tokens only."""
    fast, kind = import_transformers().PreTrainedTokenizerFast, type(pretrained)
    if not isinstance(pretrained, fast):
        raise CheckpointError(
            f"{_names(files)}: {kind.__name__} of transformers reads it in a way that is not supported here; save the "
            f"tokenizer as {_WHOLE}"
        )
    if kind is not fast:  # the fast base class reads any vocabulary that it finds, or raises an error
        _require_files([folder / name for name in kind.vocab_files_names.values() if name != _WHOLE], files)


def _listed_tokens(where: Path, config: Mapping[str, Any]) -> dict[int, str]:
    ids = {} if _LISTED in config else _read_optional(where)
    try:
        if _LISTED in config:
            return {int(i): token.content for i, token in _tokens_with_flags(config).items()}
        return {int(i): text for text, i in ids.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: the added tokens cannot be read ({error!r}); download it again"
        ) from None


def _tokens_with_flags(config: Mapping[str, Any]) -> dict[str, AddedToken]:
    added_token = import_transformers().AddedToken
    return {i: added_token(**{**token, "content": token["content"]}) for i, token in config[_LISTED].items()}


def _check_ids(pretrained: PreTrainedTokenizerFast, listed: Mapping[int, str], where: Path) -> None:
    for i, text in sorted(listed.items()):
        if (given := pretrained.backend_tokenizer.token_to_id(text)) != i:
            raise CheckpointError(
                f"{where}: got token {text!r} with id {i}, but the vocabulary gives it {given}; ids must follow the "
                f"vocabulary without a gap: use files of one checkpoint"
            )


def _mark_tokens(pretrained: PreTrainedTokenizerFast, config: Mapping[str, Any]) -> None:
    """Set the flags of added tokens as the configuration lists them: Qwen2's class drops the flags of tokens with a
    role. A token with a role, such as the mask token, is marked as special even if its file does not mark it."""
    backend = pretrained.backend_tokenizer
    flagged = _tokens_with_flags(config) if _LISTED in config else {}
    tokens = {
        token.content: token for token in (*backend.get_added_tokens_decoder().values(), *flagged.values())
    }
    roles = set(pretrained.all_special_tokens)
    for token in tokens.values():
        token.special = token.special or token.content in roles
    backend.add_tokens(list(tokens.values()))


def _check_templates(folder: Path, config: Mapping[str, Any]) -> None:
    files = [
        file for file in (folder / _TEMPLATE, *(folder / _NAMED_TEMPLATES).glob("*.jinja")) if file.exists()
    ]
    for file in files:
        try:
            read_text(file)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file}: cannot be read ({error}); download it again") from None
    template = config.get("chat_template")
    if not files and not isinstance(template, str | list | None):
        raise CheckpointError(
            f"{folder / _CONFIG}: got chat_template of type {type(template).__name__}; it must be text, or a list of "
            "objects with name and template: correct the file"
        )
