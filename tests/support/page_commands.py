"""Commands that pages of the documentation show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
LANGUAGES = {"", "bash", "console", "sh", "shell"}
PROGRAMS = {"lopa", "make", "python", "ray", "serve"}
OTHER_PROGRAMS = {"cd", "cp", "curl", "docker", "export", "git", "litellm", "nginx", "openssl", "pip"}
OTHER_PROGRAMS |= {"pre-commit", "scp", "source", "ssh", "umask"}
PLACEHOLDERS = {"COMMAND", "..."}


@dataclass(frozen=True)
class Block:
    """A fenced block of commands, with what the line before it says that it needs."""

    page: Path
    line: int
    needs: frozenset[str]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    begun: int | None = None
    for at, line in enumerate(lines):
        if not line.strip().startswith("```"):
            continue
        if begun is None:
            begun = at
            continue
        before = next((text for text in reversed(lines[:begun]) if text.strip()), "")
        needs = re.fullmatch(r"\*Needs: (.+)\.\*", before.strip())
        if lines[begun].strip().removeprefix("```") in LANGUAGES:
            words = frozenset(needs[1].split(", ")) if needs else frozenset()
            yield Block(page, begun + 1, words, "\n".join(lines[begun + 1 : at]))
        begun = None
    assert begun is None, f"{page}:{begun}: a block without an end"


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command: continued lines are one, and `&&` and `--` before a program separate two."""
    first = program(block.text.split())
    if not first or (first[0] not in PROGRAMS | OTHER_PROGRAMS and not (ROOT / first[0]).is_file()):
        return  # a picture, JSON, a formula
    text = re.sub(r"(?m)(^|\s+)#\s.*$", "", block.text.replace("\\\n", " "))
    lexer = shlex.shlex(text.replace("\n", " ;\n"), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set(";&|"):
            if words:
                yield words
            words = []
        else:
            words.append(word)


def program(words: list[str]) -> list[str]:
    """Without assignments of variables in front, redirections, and the folder of the program."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    for at, word in enumerate(words):
        if word in (">", "<"):
            words = words[:at]
            break
    return [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]
