"""`lopa bench serve`."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from lopa_lab.bench.measurements import Measurements
from lopa_lab.cli import bench_options as options
from lopa_lab.cli.bench_options import benchmark, several
from lopa_ray.errors import SettingsError


@benchmark
def serve(
    url: Annotated[str, typer.Option(help="Address of a running server.")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="What requests name in `model`; by default the first one."),
    ] = None,
    concurrency: Annotated[Any, several(options.POSITIVE, "Clients that wait for their answers.")] = "1,4,16",
    rate: Annotated[
        Any, several(options.NUMBERS, "Requests sent per second on average, without waiting for answers.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests per load.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens per request, at most.")] = 64,
    deadline: Annotated[
        float, typer.Option(min=0.0, help="Seconds within which an answer counts as goodput.")
    ] = 2.0,
    lopa: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A decode setting of the requests; repeat it."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="DIR|NAME|SHAPE", help="Start a server of this model, in place of --url."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of that server, as SECTION.KEY=VALUE; repeat it."
        ),
    ] = None,
    layers: options.LayersOption = None,
    device: options.DeviceOption = "cpu",
    api_keys: Annotated[
        str | None, typer.Option(metavar="FILE", help="The server's file of keys; the first one is sent.")
    ] = None,
) -> Measurements:
    """Load on a running server: throughput, time to first token, latency, goodput."""
    from cluster.command_line.options import check_url, parse_overrides
    from cluster.serving.http.api_keys import load_api_keys
    from lopa_lab.bench.load import Target, find_model
    from lopa_lab.bench.serve import measure_server, started_server

    if start is None and (assignments or layers is not None or device != "cpu"):
        raise SettingsError(
            "--set, --layers and --device are for a server that --start starts; leave them out"
        )
    if requests < max(concurrency):
        raise SettingsError(
            f"--requests: got {requests} for {max(concurrency)} clients; each must send at least one"
        )
    check_url(url)
    keys = load_api_keys(api_keys, os.environ)
    api_key = keys[0] if keys else None
    settings = parse_overrides([f"lopa.{setting}" for setting in lopa or ()]).get("lopa", {})
    with ExitStack() as running:
        name = model
        if start is not None:
            words = [f"model.device={device}", *(assignments or ())]
            name, url = running.enter_context(started_server(start, layers, words))
        served = model or asyncio.run(find_model(url, api_key))
        return measure_server(
            name or served,
            Target(url, served, max_tokens, settings, api_key),
            concurrency=concurrency,
            rates=rate or (),
            requests=requests,
            deadline_s=deadline,
        )
