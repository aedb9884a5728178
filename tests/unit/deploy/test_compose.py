"""Docker Compose with Prometheus and Grafana, and the gateway in front of the server: what they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from cluster.serving.launch import ServeLauncher
from support.paths import ROOT

DEPLOY = ROOT / "cluster" / "deploy"
MONITORING = ROOT / "configs" / "monitoring"


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def mounts(service: str) -> dict[str, Path]:
    """The files that a service of compose.yaml sees, by their paths there."""
    parts = (volume.split(":") for volume in read("compose.yaml")["services"][service]["volumes"])
    return {inside: (DEPLOY / outside).resolve() for outside, inside, _ in parts}


def test_compose_builds_and_mounts_what_is_there() -> None:
    services = read("compose.yaml")["services"]
    build = services["lopa"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for name in ("prometheus", "grafana"):
        assert all(path.is_file() for path in mounts(name).values())
        assert re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", services[name]["image"])
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published and all(port.startswith("127.0.0.1:") for port in published)


def test_prometheus_asks_the_server_and_grafana_asks_prometheus() -> None:
    services = read("compose.yaml")["services"]
    config = yaml.safe_load(mounts("prometheus")["/etc/prometheus/prometheus.yml"].read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    ((target,),) = [entry["targets"] for entry in jobs["lopa"]["static_configs"]]
    launcher = ServeLauncher(None)
    assert target == f"{launcher.host}:{launcher.port}" and services["lopa"]["ports"] == [
        f"{target}:{launcher.port}"
    ]
    assert services["prometheus"]["network_mode"] == "service:lopa"  # the target's 127.0.0.1 is the server's
    (source,) = yaml.safe_load((MONITORING / "grafana-datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://lopa:9090"  # whose network Prometheus is in, at its usual port
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_grafana_shows_the_dashboard_with_that_source() -> None:
    seen = mounts("grafana")
    folders = {Path(inside).parent for inside in seen if inside.endswith(".yaml")}
    assert folders == {Path("/etc/grafana/provisioning") / kind for kind in ("datasources", "dashboards")}
    (source,) = yaml.safe_load((MONITORING / "grafana-datasource.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((MONITORING / "grafana-dashboards.yaml").read_text())["providers"]
    shown = [path for inside, path in seen.items() if str(Path(inside).parent) == provider["options"]["path"]]
    assert shown == [MONITORING / "grafana.json"]
    dashboard = json.loads(shown[0].read_text())
    variable = dashboard["templating"]["list"][0]
    assert (variable["type"], variable["query"], source["isDefault"]) == ("datasource", source["type"], True)
    sources = [panel["datasource"] for panel in dashboard["panels"]]
    assert all(one == {"type": source["type"], "uid": f"${{{variable['name']}}}"} for one in sources)
    assert f"/d/{dashboard['uid']}" in (DEPLOY / "compose.yaml").read_text()


def test_the_gateway_asks_the_server() -> None:
    launcher = ServeLauncher(None)
    values = read("litellm.yaml")
    for model in values["model_list"]:
        asked = model["litellm_params"]
        assert asked["model"] == f"openai/{model['model_name']}" and min(asked["rpm"], asked["tpm"]) > 0
        assert asked["api_base"] == f"http://{launcher.host}:{launcher.port}/v1"
    # Without it LiteLLM reads the limits only to choose among several servers.
    assert "enforce_model_rate_limits" in values["router_settings"]["optional_pre_call_checks"]
