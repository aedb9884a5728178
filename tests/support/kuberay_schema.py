"""KubeRay's custom resource definitions as JSON Schema."""

from __future__ import annotations

import gzip
from typing import Any

import yaml

from support.paths import DATA

FOLDER = DATA / "kuberay"


def schema(kind: str, version: str) -> dict[str, Any]:
    """The JSON Schema of a kind, as "RayJob", in a version of its API, as "v1"."""
    packed = FOLDER / f"ray.io_{kind.lower()}s.yaml.gz"
    definition = yaml.load(gzip.decompress(packed.read_bytes()), Loader=yaml.CSafeLoader)
    (found,) = [each for each in definition["spec"]["versions"] if each["name"] == version]
    return strict(found["schema"]["openAPIV3Schema"])


def strict(node: Any) -> Any:
    """OpenAPI, as Kubernetes uses it, → JSON Schema that refuses fields which Kubernetes would drop."""
    if isinstance(node, list):
        return [strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    # Under `properties` keys are names of fields, not words of the schema.
    found = {
        key: {name: strict(each) for name, each in value.items()} if key == "properties" else strict(value)
        for key, value in node.items()
        if not key.startswith("x-kubernetes-") and key != "nullable"
    }
    if "properties" in found and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if node.get("nullable") and "type" in found:
        found["type"] = [found["type"], "null"]
    return found
