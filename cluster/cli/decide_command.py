"""`lopa decide`: its arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.engine_options import EngineOptions, engine_options
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError


def decide(
    *,
    given: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="What is asked about; without it, or for -, stdin is read."),
    ] = None,
    predicates: Annotated[
        list[str] | None,
        typer.Option(
            "--predicate", "-p", metavar="TEXT", help="A question that yes or no answers; repeat it for more."
        ),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            "--choice",
            metavar="TEXT|A|B...",
            help="A question, then its choices, with | between them; repeatable.",
        ),
    ] = None,
    scores: Annotated[
        list[str] | None,
        typer.Option(
            "--score", metavar="TEXT|LOW|HIGH...", help="A question, then its levels in order; repeatable."
        ),
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            "--questions", metavar="JSON", help="File with a list of questions as OpenAI's API has them."
        ),
    ] = None,
    prefix: Annotated[str | None, typer.Option("--prefix", help="input or joint (decisions.prefix).")] = None,
    rotations: Annotated[
        int | None, typer.Option("--rotations", help="Orders of choices to average (decisions.rotations).")
    ] = None,
    config: options.OptionalConfigOption = None,
    engine: Annotated[EngineOptions, engine_options("model.*", "set", "group.*", "local")],
    as_json: options.JsonOption = False,
    source: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="FILE|URL", help="Many inputs: JSONL, or Parquet; - is stdin."),
    ] = None,
    output: options.OutputOption = "-",
) -> None:
    """Answer typed questions about an input by probabilities.

    A line of --input is an object with "input" and "questions", as OpenAI's API has them, and optionally "id" and
    "settings" (prefix, rotations). Questions of the options go with each line that has none.
    """
    from cluster.cli.decide import decide_one, read_decision_lines, read_questions
    from cluster.cli.generate import decode_file, read_prompt
    from cluster.cli.where_to_decode import is_local

    overrides = engine.overrides()
    named = {"prefix": prefix, "rotations": rotations}
    overrides.setdefault("decisions", {}).update(
        {name: value for name, value in named.items() if value is not None}
    )
    loaded = Config.load(config or engine.preset() or "demo", overrides)
    asked = read_questions(predicates or [], choices or [], scores or [], questions)
    if source is not None and given is not None:
        raise SettingsError("--input takes no INPUT; leave one of them out")
    if source is None and output != "-":
        raise SettingsError("--output needs --input; for one input redirect stdout")
    if source is None and not asked:
        raise SettingsError(
            "no questions; ask one, as --score 'How many pens are there?|fewer than 10|10 or more', or with --choice, "
            "--predicate or --questions"
        )
    text = read_prompt(given) if source is None else ""
    cannot = "answers scores of one number, and guesses predicates and choices"
    local = is_local(loaded, engine, config, cannot)
    if source is not None:
        decode_file(loaded, read_decision_lines(source, asked), output, local=local)
    else:
        decide_one(loaded, text, asked, local=local, as_json=as_json)
