"""vLLM's `vllm_xargs`: what its open request 57250 calls a first canvas."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field

from cluster.openai.errors import invalid_value
from cluster.openai.request_model import RequestModel
from lopa_ray.config.generation_settings import MAX_GIVEN_PARTS
from lopa_ray.config.http_field import MAX_INT

Natural: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT)]


def _flag(value: Any) -> Any:
    """vLLM's server makes numbers of flags."""
    return bool(value) if type(value) is int and value in (0, 1) else value


class VllmXargs(RequestModel):
    """A first canvas, in vLLM's words."""

    diffusion_seed_canvas: Annotated[list[Natural], Field(min_length=1)] | None = None
    """Token ids that the answer begins with, as `draft`."""

    diffusion_pinned: Annotated[list[Natural], Field(max_length=MAX_GIVEN_PARTS)] | None = None
    """Positions of that canvas whose tokens stay, as `given_parts`."""

    diffusion_max_steps: int | None = Field(default=None, ge=1, le=MAX_INT)
    """Calls on a canvas, as `max_denoising_steps`: for models whose canvases begin as random tokens."""

    diffusion_read_only: Annotated[bool | None, BeforeValidator(_flag)] = None
    """The answer is this one canvas, which no token ends. For the same models."""

    def decode_settings(self, max_new_tokens: int | None) -> dict[str, tuple[str, Any]]:
        """Decode setting → the field that sets it, and its value. Raises ApiError for what contradicts itself."""
        seed, pinned = self.diffusion_seed_canvas, sorted({*(self.diffusion_pinned or ())})
        where = "vllm_xargs.diffusion_"
        if seed is None and (pinned or self.diffusion_read_only):
            field = f"{where}{'pinned' if pinned else 'read_only'}"
            raise invalid_value(field, "needs diffusion_seed_canvas; add that, or leave it out")
        if seed is not None and pinned and pinned[-1] >= len(seed):
            message = f"got position {pinned[-1]}; diffusion_seed_canvas has {len(seed)} tokens"
            raise invalid_value(f"{where}pinned", message)
        settings: dict[str, tuple[str, Any]] = {}
        if seed is not None:
            settings["draft"] = f"{where}seed_canvas", seed
            if pinned:
                parts = [{"at": at, "token_ids": [seed[at]]} for at in pinned]
                settings["given_parts"] = f"{where}pinned", parts
            if self.diffusion_read_only:
                length = min(max_new_tokens or len(seed), len(seed))
                reads: dict[str, Any] = {"decoder": "renoising", "ignore_eos": True, "stop_token_ids": []}
                reads |= {"max_new_tokens": length}
                settings |= {name: (f"{where}read_only", value) for name, value in reads.items()}
        if self.diffusion_max_steps is not None:
            settings["max_denoising_steps"] = f"{where}max_steps", self.diffusion_max_steps
        return settings
