"""Packages of the distributions; everything else is in pyproject.toml.

`configs/` is no import package: a user's folder of that name would shadow it. A wheel has it inside of `lopa_ray`.
"""

from setuptools import find_packages, setup

FLOORS = ("lopa_ray", "actors", "cluster", "lopa_lab")
CONFIGS = "lopa_ray.presets.configs"

setup(
    packages=[*find_packages(include=[*FLOORS, *(f"{floor}.*" for floor in FLOORS)]), CONFIGS],
    package_dir={CONFIGS: "configs"},
)
