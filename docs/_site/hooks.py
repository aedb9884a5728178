"""Hooks of mkdocs: pages made from files outside of docs/ and from code, and links that leave the site."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File

from api_page import api_page
from lopa_lab.records.figure import INK
from settings_page import settings_page

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

log = get_plugin_logger("site")

DARK_INK = "#c8c8c8"
"""Text and axes of figures on dark pages; the files have a grey that both kinds of pages of GitHub show."""

OUTSIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/NOTES.md": "benchmark_notes.md",
}
"""Files of the repository that are pages of the site, with their addresses there."""

STUBS = {"lopa_ray": "lopa_ray", "actors": "actors", "cluster.jobs": "cluster_jobs"}
"""Packages whose `__init__.pyi` lists public names, with their pages in api/."""

LINK = re.compile(r"\]\(([^)\s]+)\)")  # its text may have begun on the line before
LIST_ITEM = re.compile(r"\s*([-*]|\d+\.) ")
FIRST_ITEM = re.compile(r"\s*([-*]|1\.) ")
FIGURE = re.compile(r"!\[([^\]]*)\]\(((?:figures|plots)/[^)]*)\.svg\)")
NEEDS = re.compile(r"\*Needs: (.+)\.\*")
FENCE = re.compile(r"\s*(```|~~~)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and images that are not in docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    plots = sorted((ROOT / "benchmarks/plots").glob("*.svg"))
    for image in plots:
        files.append(File.generated(config, f"plots/{image.name}", abs_src_path=str(image)))
    for image in [*plots, *sorted((ROOT / "docs/figures").glob("*.svg"))]:
        dark = image.read_text(encoding="utf-8").replace(INK, DARK_INK)
        files.append(File.generated(config, f"{image.parent.name}/{image.stem}.dark.svg", content=dark))
    files.append(File.generated(config, "site.css", abs_src_path=str(Path(__file__).with_name("site.css"))))
    files.append(File.generated(config, "settings.md", content=settings_page()))
    for package, page in STUBS.items():
        files.append(File.generated(config, f"api/{page}.md", content=api_page(ROOT, package)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A page as the site has it: its links, notes on what commands need, and lists as python-markdown reads them."""
    address = page.file.src_uri
    source = next((name for name, page in OUTSIDE.items() if page == address), f"docs/{address}")
    lines: list[str] = []
    in_code = False
    for line in markdown.splitlines():
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            line = NEEDS.sub(r'!!! note ""\n    The commands below need: \1.', line)
            line = LINK.sub(
                lambda link: f"]({_on_site(link[1], source, address, config.extra['repository'], files)})",
                line,
            )
            line = FIGURE.sub(r"![\1](\2.svg#only-light)![\1](\2.dark.svg#only-dark)", line)
            # GitHub begins a list right after a paragraph, python-markdown after an empty line.
            if FIRST_ITEM.match(line) and lines and _is_paragraph(lines[-1]):
                lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _is_paragraph(line: str) -> bool:
    return bool(line.strip()) and not line.startswith((" ", "|", "#")) and not LIST_ITEM.match(line)


def _on_site(link: str, source: str, address: str, repository: str, files: Files) -> str:
    """The link `link` in the file `source` (its path in the repository), from the page `address` of the site."""
    if re.match(r"[a-z]+:|#", link):
        return link
    path, hash_sign, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    on_site = OUTSIDE.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
    if target.startswith("benchmarks/plots/"):
        on_site = target.removeprefix("benchmarks/")
    if on_site is not None and files.get_file_from_path(on_site) is not None:
        return posixpath.relpath(on_site, posixpath.dirname(address) or ".") + hash_sign + anchor
    if not (ROOT / target).exists():
        log.warning("%s links to %s, which does not exist", source, link)
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{repository}/{kind}/main/{target}{hash_sign}{anchor}"
