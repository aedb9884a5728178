"""Commands that pages show can be typed as they stand, or say what they need; files that they name are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from cluster.cli.commands import app
from cluster.jobs.__main__ import app as jobs_app
from support.page_commands import (
    OTHER_PROGRAMS,
    PAGES,
    PLACEHOLDERS,
    Block,
    all_blocks,
    blocks,
    commands,
    program,
)
from support.paths import ROOT

NEEDS = {"GPU", "NPU", "cluster", "server", "download", "files"}

FOLDERS = "actors|benchmarks|cluster|configs|docs|examples|lopa_lab|lopa_ray|tests"

LOPA = typer.main.get_command(app)
JOB = typer.main.get_command(jobs_app)


def parse(command: Any, words: list[str], name: str) -> None:
    """Fail if these words are no call of this command: unknown commands, options or values."""
    if hasattr(command, "commands"):
        if not words or words[0] in PLACEHOLDERS or words[0].startswith("-"):
            return
        known = command.commands
        assert words[0] in known, f"{name} has no command {words[0]}; it has {', '.join(known)}"
        parse(known[words[0]], words[1:], f"{name} {words[0]}")
        return
    words = [word for word in words if word not in PLACEHOLDERS or word == "..."]
    try:
        command.make_context(name, list(words))
    except Exception as error:  # typer has a copy of click's errors, under no public name
        message = error.format_message() if hasattr(error, "format_message") else repr(error)
        raise AssertionError(f"{name} {' '.join(words)}: {message}") from None


def check(words: list[str]) -> None:
    words = program(words)
    if not words:
        return
    if words[0] == "lopa":
        parse(LOPA, words[1:], "lopa")
    elif words[0] == "make":
        targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
        assert targets.issuperset(word for word in words[1:] if "=" not in word), f"no such target: {words}"
    elif words[0] == "python":
        assert len(words) > 1
        if words[1:3] == ["-m", "cluster.jobs"]:
            parse(JOB, words[3:], "cluster.jobs")
        elif words[1] == "-m":
            known = words[2] == "venv" or (ROOT / words[2].replace(".", "/")).exists()
            assert known, f"no module {words[2]}"
        else:
            assert (ROOT / words[1]).exists(), f"no file {words[1]}"
    elif words[:3] == ["ray", "job", "submit"]:
        assert "--" in words, f"the command of a job stands behind --: {words}"
        check(words[words.index("--") + 1 :])
    elif words[0] in ("ray", "serve"):
        pass
    else:
        known = words[0] in OTHER_PROGRAMS or (ROOT / words[0]).exists()
        assert known, f"a program that no page names yet: {words[0]}"


@pytest.mark.parametrize("block", [block for block in all_blocks() if list(commands(block))], ids=str)
def test_commands_can_be_typed(block: Block) -> None:
    for words in commands(block):
        without_usage = [word for word in words if not word.startswith("[--")]
        if without_usage != words:
            continue  # a line of usage, with options in brackets
        check(words)


def needed(words: list[str]) -> set[str]:
    """What a command cannot do without, as far as its words show."""
    text = " ".join(words)
    name = (program(words) or [""])[0]
    needs = set()
    if re.search(r"device=cuda|d2f-dream-7b|--config models/(?!smollm2)|paper/", text):
        needs.add("GPU")
    if "device=npu" in text:
        needs.add("NPU")
    if name in ("ray", "serve") or "RAY_ADDRESS=" in text:
        needs.add("cluster")
    if name == "curl" or text.startswith("lopa scale"):
        needs.add("server")
    if re.search(r"[A-Z][\w-]*/[A-Z]|d2f-dream-7b|--config models/|gsm8k|humaneval", text) or name == "pip":
        needs.add("download")
    return needs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_say_what_they_need(page: Path) -> None:
    for block in blocks(page):
        assert block.needs <= NEEDS, f"{block} needs {block.needs}; the words are {', '.join(sorted(NEEDS))}"
        missing = set().union(*map(needed, commands(block))) - block.needs
        words = ", ".join(sorted(missing | block.needs))
        assert not missing, f"{block}: put a line *Needs: {words}.* before it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


@pytest.mark.medium
@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_names_in_backquotes_exist(page: str) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"))
    named = {name for name in re.findall(r"`([A-Za-z_][\w.]*)`", text) if not re.search("NAME|VERSION", name)}
    missing = {word for name in named for word in re.findall(r"\w+", name)} - words_of_the_code()
    assert not missing, f"{page} names {', '.join(sorted(missing))}, which no code has"


def words_of_the_code() -> set[str]:
    """Names of files and words in them, without pages and recorded data."""
    found = set()
    for folder in (*FOLDERS.split("|"), ".github"):
        for path in (ROOT / folder).rglob("*.*"):
            if path.suffix in (".py", ".pyi", ".yaml", ".yml", ".toml"):
                found |= set(re.findall(r"\w+", f"{path} {path.read_text(encoding='utf-8')}"))
            found |= {path.stem, path.suffix[1:]}
    for name in ("Makefile", "pyproject.toml"):
        found |= set(re.findall(r"\w+", (ROOT / name).read_text(encoding="utf-8")))
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    texts = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", text).replace(" ", "-") for text in texts}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_there_are(page: Path) -> None:
    for place, anchor in re.findall(
        r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")
    ):
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), place
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), f"{place}#{anchor}"


def test_every_example_is_listed() -> None:
    """Those beside a program that is listed are its parts."""
    page = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    for folder, suffix in (("", ".py"), ("notebooks/", ".ipynb")):
        names = [path.name for path in (ROOT / "examples" / folder).glob(f"*{suffix}")]
        assert names
        for name in names:
            assert f"[`{name}`]({folder}{name}) | " in page


def test_extras_are_installed_from_the_checkout() -> None:
    """No release is on PyPI: its name cannot be installed."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pages = [ROOT / "lopa_ray/presets/demo-model/README.md", *PAGES]
    for folder in ("actors", "cluster", "examples", "lopa_lab", "lopa_ray"):
        pages += (ROOT / folder).rglob("*.py")
    used = set()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install\s+'?lopa-ray|lopa-ray\[", text), page
        used |= set(re.findall(r"'\.\[(\w+)\]'|install_advice\(['\"](\w+)", text))
    names = {name for pair in used for name in pair if name}
    assert {"eval", "jobs", "npu"} <= names <= set(declared["optional-dependencies"])
