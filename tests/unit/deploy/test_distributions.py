"""What an installation has: presets are found in each kind of it, also beside a user's folders of the same names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import ProjectBuilder

from support.paths import ROOT

pytestmark = pytest.mark.slow

FOLDERS = ("lopa_ray", "actors", "cluster", "lopa_lab", "configs")
BUILT_FROM = ("pyproject.toml", "setup.py", "README.md", "LICENSE")

LOAD = """
import lopa_ray
print(lopa_ray.__file__)
print(lopa_ray.Config.load("demo").decode.decoder, lopa_ray.Config.load("paper/s7").decode.decoder)
from lopa_ray.config.yaml_files import serve_config
assert serve_config().is_file()
"""

WITHOUT_THIS_CHECKOUT = """
import site, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
for name in [name for name in sys.modules if name.startswith("__editable__")]:
    del sys.modules[name]  # an editable installation of another checkout has a module of the same name
sys.path.insert(1, {place!r})  # behind the folder of the script
site.addsitedir({place!r})
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folders that a wheel is built from, and that a Ray `working_dir` needs."""
    place = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, place / name)
    return place


def built(checkout: Path, kind: str, folder: Path) -> Path:
    """A folder with the content of a wheel, or of an editable one, as pip installs it."""
    wheel = ProjectBuilder(checkout, runner=quiet).build(kind, folder / "dist")
    place = folder / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def quiet(command: list[str], cwd: str | None = None, extra_environ: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(extra_environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(checkout, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(
    scope="module",
    params=[
        *("editable", "wheel"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("checkout", "working_dir")),
    ],
)
def installation(
    request: pytest.FixtureRequest, checkout: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """What is on Python's path: the checkout itself, or what an installation puts there."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "working_dir":
        for name in FOLDERS:
            shutil.copytree(checkout / name, folder / name)
        yield folder
    elif request.param == "checkout":
        yield checkout
    elif request.param == "wheel":
        yield wheel
    else:
        yield built(checkout, request.param, folder)


def run(script: str, installation: Path, project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script of a user's project with that installation alone."""
    (project / "script.py").write_text(WITHOUT_THIS_CHECKOUT.format(place=str(installation)) + script)
    return subprocess.run(
        [sys.executable, *options, "script.py"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def folder_of(project: Path, name: str, *, package: bool) -> Path:
    folder = project / name
    folder.mkdir()
    (folder / ("__init__.py" if package else "train.yaml")).touch()
    return folder


@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
def test_presets_are_found_beside_a_folder_configs(installation: Path, tmp_path: Path, package: bool) -> None:
    folder_of(tmp_path, "configs", package=package)
    done = run(LOAD, installation, tmp_path)
    assert done.returncode == 0, done.stderr
    place, decoders = done.stdout.splitlines()
    assert not place.startswith(str(ROOT))
    assert decoders == "lopa lopa"


def test_a_wheel_has_no_package_configs(wheel: Path) -> None:
    packages = {path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")}
    assert packages == {"lopa_ray", "actors", "cluster", "lopa_lab"}
    shipped = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.*")}
    installed = wheel / "lopa_ray" / "presets" / "configs"
    assert shipped == {path.relative_to(installed) for path in installed.rglob("*.*")}


def test_links_of_the_readme_in_a_wheel_are_absolute(wheel: Path) -> None:
    metadata = next(wheel.glob("*.dist-info")) / "METADATA"
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", metadata.read_text(encoding="utf-8"))
    assert len(links) > 20
    for image, link in links:
        assert link.startswith("https://"), link
        of_repository = re.fullmatch(
            r"https://github.com/lopa-ray/lopa-ray/(raw|blob)/main/([^#]+)(#.*)?", link
        )
        if of_repository:
            assert (of_repository[1] == "raw") == bool(image)
            assert (ROOT / of_repository[2]).exists()


@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
def test_what_shadows_a_package_is_named(installation: Path, tmp_path: Path, package: bool) -> None:
    folder = folder_of(tmp_path, "cluster", package=package)
    # Python looks into an editable installation last, so there any folder shadows it.
    shadowed = package or "editable" in str(installation)
    message = f"{folder.resolve()} shadows the package 'cluster' of lopa-ray: "
    done = run("import lopa_ray; lopa_ray.Config; import actors", installation, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (message in done.stderr and "Rename it" in done.stderr) if shadowed else not done.stderr

    command = "import sys; sys.argv = ['lopa', '--version']; from lopa_ray.__main__ import main; main()"
    done = run(command, installation, tmp_path)
    assert done.returncode == shadowed, done.stderr
    assert done.stderr.startswith(f"Error: {message}") if shadowed else not done.stderr


def test_a_shadowed_group_is_an_error_of_the_command_line(installation: Path, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "actors", package=True)
    done = run("import cluster.cli", installation, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"ImportError: {folder.resolve()} shadows the package 'actors'"
    )
