"""A backend that answers with an engine in its own process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoicesOutput, ChoicesRequest, RequestAccepted
from lopa_ray.engine.local import LocalEngine
from support.answers import outputs
from support.fake_backend import FakeBackend


@dataclass
class LocalBackend(FakeBackend):
    """Answers with `engine`."""

    engine: LocalEngine | None = None

    async def _outputs(self, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        assert self.engine is not None
        choices = ChoiceFactory(self.engine).create(request, 0.0)
        lengths = tuple(choice.prompt_tokens for choice in choices[:: request.n])
        yield RequestAccepted(lengths, choices[0].session.settings.max_new_tokens)
        for output in outputs(self.engine, request):
            yield output
