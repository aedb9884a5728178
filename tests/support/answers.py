"""Requests answered by an engine in this process, as a decode group answers them."""

from __future__ import annotations

import time

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoiceFinished, ChoicesOutput, ChoicesRequest
from lopa_ray.engine.base import Engine
from lopa_ray.protocol.events import RequestStep


def outputs(engine: Engine, request: ChoicesRequest, *, max_steps: int | None = None) -> list[ChoicesOutput]:
    """All outputs behind `RequestAccepted`; after `max_steps` of a choice its deadline comes."""
    choices = ChoiceFactory(engine).create(request, time.monotonic())
    received = [output for choice in choices for output in choice.start()]
    steps = dict.fromkeys(range(len(choices)), 0)

    def on_event(number: int, event: RequestStep) -> None:
        choice = choices[number]
        if choice.finished:
            return
        received.extend(choice.add_step(event))
        steps[number] += 1
        if steps[number] == max_steps and not choice.finished:
            received.extend(choice.finish_at_deadline())

    for _, result in engine.run([choice.session for choice in choices], on_event=on_event):
        if isinstance(result, Exception):
            raise result
    return received


def answers(engine: Engine, request: ChoicesRequest) -> list[ChoiceFinished]:
    """The finished choices, in order."""
    finished = [output for output in outputs(engine, request) if isinstance(output, ChoiceFinished)]
    return sorted(finished, key=lambda choice: choice.choice)
