"""Reads the Serve config that `lopa serve` runs: what Serve would refuse, or silently ignore, is refused here."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from ray.serve import Deployment
from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, ServeDeploySchema

from lopa_ray.config.yaml_files import SERVE, parse_yaml, serve_config
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text

IMPORT_PATH = "cluster.serving.app:build"
_TOP_KEYS = ("proxy_location", "http_options", "logging_config", "applications")
_APPLICATION_KEYS = ("name", "route_prefix", "import_path", "runtime_env", "args", "deployments")


def read_serve_config(source: str | Path | None) -> dict[str, Any]:
    """The values of a Serve config file; None: of the file that ships with this project. Raises SettingsError."""
    path = serve_config() if source is None or str(source) == SERVE else Path(source)
    try:
        values = parse_yaml(read_text(path))
    except OSError as error:
        raise SettingsError(f"cannot read the Serve config {path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"the Serve config {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        hint = f"a mapping with the keys {', '.join(_TOP_KEYS)}"
        raise SettingsError(f"the Serve config {path} is a {type(values).__name__}; allowed: {hint}")
    _check_values(path, values)
    for where, mapping, allowed in _mappings(values):
        for key in mapping:
            if key not in allowed:
                raise SettingsError(f"{path}: unknown key {key!r} in {where}; allowed: {', '.join(allowed)}")
    return values


def _check_values(path: Path, values: Mapping[str, Any]) -> None:
    try:
        schema = ServeDeploySchema(**{str(key): value for key, value in values.items()})
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        where = ".".join(map(str, detail["loc"])) or "its top level"
        raise SettingsError(f"{path}: {where}: got {detail['input']!r}; {detail['msg']}") from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{path} is not a Serve config: {error}") from None
    port = schema.http_options.port
    if not 1 <= port <= 65535:
        raise SettingsError(f"{path}: http_options.port: got {port}; allowed: 1 to 65535")
    import_paths = [application.import_path for application in schema.applications]
    if import_paths != [IMPORT_PATH]:
        raise SettingsError(
            f"{path}: got applications {import_paths}; allowed here: one with import_path {IMPORT_PATH} "
            "(serve run takes any)"
        )


def _mappings(values: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Iterable[str]]]:
    """Each mapping of the file whose keys are fixed: where it stands, itself, which keys it may have."""
    options = set(inspect.signature(Deployment.options).parameters) & set(DeploymentSchema.model_fields)
    application = values["applications"][0]
    yield "its top level", values, _TOP_KEYS
    yield "http_options", values.get("http_options") or {}, sorted(HTTPOptionsSchema.model_fields)
    yield "applications.0", application, _APPLICATION_KEYS
    yield "applications.0.runtime_env", application.get("runtime_env") or {}, ("env_vars",)
    for at, deployment in enumerate(application.get("deployments") or ()):
        yield f"applications.0.deployments.{at}", deployment, sorted(options)
