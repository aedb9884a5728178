"""The outside world: `cli` (the `lopa` command), `serving` (the server behind `lopa serve`) and `jobs` (files of
prompts, decoded on many groups). They share `batch` (files of requests), `openai` (OpenAI's API), `choices` (from a
request to what answers it) and `command_line`. `deploy` has files for Kubernetes, Slurm and Docker."""

from lopa_ray.shadowing import refuse_shadowed_packages

refuse_shadowed_packages()

import actors as actors  # noqa: E402 - before Ray, because it sets Ray's authentication
