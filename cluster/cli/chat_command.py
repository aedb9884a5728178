"""The options of `lopa chat`, and who answers."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.engine_options import EngineOptions, engine_options
from lopa_ray.errors import SettingsError

NOT_OF_CHATS = ("model", "dtype", "decoder", "num_branches", "suffix", "tensor_parallel_size")


def chat(
    *,
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
    engine: Annotated[
        EngineOptions, engine_options("model.*", "decode.*", "set", "group.*", "local", without=NOT_OF_CHATS)
    ],
) -> None:
    """Talk to a model: a line is a message, and the answer comes as it is decoded. Ctrl-D ends the conversation.

    Without --url this process decodes, or Ray where lopa generate would use it. With --url --set takes decode
    settings, which lopa serve alone understands.
    """
    from cluster.cli.chat import converse
    from cluster.cli.where_to_decode import is_local

    if url is not None:
        from cluster.cli.server_partner import ServerPartner

        sent = {"max_new_tokens": "max_tokens", "temperature": "temperature", "seed": "seed"}
        of_engine = {name: value for name, value in engine.items() if name not in (*sent, "set")}
        options.refuse_beside("--url", {"config": config, **of_engine})
        sections = options.parse_overrides(engine["set"])
        if sections.keys() - {"decode"}:
            raise SettingsError("--set: got a setting of the model or group; allowed with --url: decode.KEY")
        parameters = {key: engine[name] for name, key in sent.items() if engine[name] is not None}
        lopa = {"lopa": sections["decode"]} if sections else {}
        converse(ServerPartner(url, api_key, model, {**parameters, **lopa}), system)
        return
    engine["model"] = model
    loaded = engine.load(config)
    local = is_local(loaded, engine, config)

    from cluster.batch.open_engine import open_engine
    from cluster.cli.chat_partner import EnginePartner

    with open_engine(loaded, local=local) as partner:
        converse(EnginePartner(partner), system)
