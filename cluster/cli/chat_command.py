"""The options of `lopa chat`, and who answers."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.exit_status import exit_on_error
from lopa_ray.errors import SettingsError


def chat(
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="An OpenAI-compatible server answers, as http://127.0.0.1:8000."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", envvar="OPENAI_API_KEY", help="The server's key; a command line is no secret."
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    config: options.OptionalConfigOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|NAME", help="Checkpoint (model.path); with --url an id, by default the first one."
        ),
    ] = None,
    lora: options.LoraOption = None,
    device: options.DeviceOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    temperature: options.TemperatureOption = None,
    seed: options.SeedOption = None,
    assignments: options.SetOption = None,
    workers: options.WorkersOption = None,
    local: options.LocalOption = False,
) -> None:
    """Talk to a model: a line is a message, and the answer comes as it is decoded. Ctrl-D ends the conversation.

    Without --url this process decodes, or Ray where lopa generate would use it. With --url --set takes decode
    settings, which lopa serve alone understands.
    """
    from cluster.cli.chat import converse
    from cluster.cli.demo_model import warn_of_demo_model
    from cluster.cli.where_to_decode import is_local

    with exit_on_error():
        if url is not None:
            from cluster.cli.server_partner import ServerPartner

            of_engine = {"--config": config, "--lora": lora, "--device": device, "--workers": workers}
            options.refuse_beside("--url", {**of_engine, "--local": local})
            sections = options.parse_overrides(assignments)
            if sections.keys() - {"decode"}:
                raise SettingsError(
                    "--set: got a setting of the model or group; allowed with --url: decode.KEY"
                )
            sent = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
            parameters = {name: value for name, value in sent.items() if value is not None}
            lopa = {"lopa": sections["decode"]} if sections else {}
            converse(ServerPartner(url, api_key, model, {**parameters, **lopa}), system)
            return
        if local:
            options.refuse_beside("--local", {"--workers": workers})
        overrides = options.parse_overrides(
            assignments,
            model=model,
            lora=lora,
            device=device,
            workers=workers,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
        )
        loaded = options.load_config(config or "demo", overrides)
        local = is_local(loaded, local=local, source=config, options=overrides.get("group", {}))
        warn_of_demo_model(loaded)

        from cluster.batch.open_engine import open_engine
        from cluster.cli.chat_partner import EnginePartner

        with open_engine(loaded, local=local) as engine:
            converse(EnginePartner(engine), system)
