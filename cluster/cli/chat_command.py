"""The options of `lopa chat`, and who answers."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.options import SETTINGS
from lopa_ray.errors import SettingsError

NOT_OF_CHATS = ("model", "suffix")
OF_REQUESTS = {"max_new_tokens": "max_tokens", "temperature": "temperature", "seed": "seed"}
"""Option → the parameter of a request to a server. The server of this project alone has the other decode settings."""


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

    Without --url this process decodes, or Ray where lopa generate would use it. With --url decode settings are
    sent, of which servers other than lopa serve understand --max-new-tokens, --temperature and --seed alone.
    """
    from cluster.cli.chat import converse
    from cluster.cli.where_to_decode import is_local

    if url is not None:
        from cluster.cli.server_partner import ServerPartner

        decoding = {
            name: value for name, value in engine.items() if SETTINGS.get(name, "").startswith("decode.")
        }
        others = {name: value for name, value in engine.items() if name not in (*decoding, "set")}
        options.refuse_beside("--url", {"config": config, **others})
        parameters = {sent: engine[name] for name, sent in OF_REQUESTS.items() if engine[name] is not None}
        sections = options.parse_overrides(engine["set"], **decoding | dict.fromkeys(OF_REQUESTS))
        if sections.keys() - {"decode"}:
            raise SettingsError("--set: got a setting of the model or group; allowed with --url: decode.KEY")
        lopa = {"lopa": sections["decode"]} if sections else {}
        converse(ServerPartner(url, api_key, model, {**parameters, **lopa}), system)
        return
    engine["model"] = model
    loaded = engine.load(config)
    cannot = "solves arithmetic word problems, one per message, and does not converse"
    local = is_local(loaded, engine, config, cannot)

    from cluster.batch.open_engine import open_engine
    from cluster.cli.chat_partner import EnginePartner

    with open_engine(loaded, local=local) as partner:
        converse(EnginePartner(partner), system)
