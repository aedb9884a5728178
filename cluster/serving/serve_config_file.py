"""Reads the Serve config that `lopa serve` runs: what Serve would refuse, or silently ignore, is refused here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ray.serve import Deployment
from ray.serve.schema import DeploymentSchema, HTTPOptionsSchema, ServeDeploySchema

from cluster.serving.settings import ModelEntry
from lopa_ray.config.yaml_files import SERVE, read_config, serve_config
from lopa_ray.errors import SettingsError

IMPORT_PATH = "cluster.serving.app:build"
_TOP_KEYS = ("proxy_location", "http_options", "logging_config", "applications")
_APPLICATION_KEYS = ("name", "route_prefix", "import_path", "runtime_env", "args", "deployments")


def read_serve_config(source: str | Path | None) -> dict[str, Any]:
    """The values of a Serve config: of a file, of the shipped one (None), or of the shipped one with the model of a
    preset or file that `lopa generate` takes. Raises SettingsError."""
    path = serve_config() if source is None or str(source) == SERVE else source
    values = read_config(path)
    if values.keys().isdisjoint(_TOP_KEYS):
        return _with_model(str(source))
    _check_values(path, values)
    for where, mapping, allowed in _mappings(values):
        for key in mapping:
            if key not in allowed:
                raise SettingsError(f"{path}: unknown key {key!r} in {where}; allowed: {', '.join(allowed)}")
    return values


def _with_model(source: str) -> dict[str, Any]:
    """The shipped config with one model, called like its preset or file, in place of its own."""
    values = read_serve_config(None)
    application = values["applications"][0]
    (shipped,) = application["args"]["models"]
    entry = ModelEntry(id=re.sub(r"\.ya?ml$", "", Path(source).name), config=source)
    application["args"]["models"] = [entry.model_dump()]
    for deployment in application["deployments"]:
        if deployment["name"] == shipped["id"]:
            deployment["name"] = entry.deployment
    return values


def _check_values(path: str | Path, values: Mapping[str, Any]) -> None:
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
