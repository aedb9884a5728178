"""Packages of the distributions, and the README as a package index shows it; everything else is in pyproject.toml.

`configs/` is no import package: a user's folder of that name would shadow it. A wheel has it inside of `lopa_ray`.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

FLOORS = ("lopa_ray", "actors", "cluster", "lopa_lab")
CONFIGS = "lopa_ray.presets.configs"
REPOSITORY = "https://github.com/lopa-ray/lopa-ray"


def readme() -> str:
    """README.md, its links and images absolute: a package index has none of the files beside it."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\1{REPOSITORY}/blob/main/", text)


setup(
    packages=[*find_packages(include=[*FLOORS, *(f"{floor}.*" for floor in FLOORS)]), CONFIGS],
    package_dir={CONFIGS: "configs"},
    long_description=readme(),
    long_description_content_type="text/markdown",
)
