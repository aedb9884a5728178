"""The outside world: the command line, and what runs decode groups on a cluster.

`cli` is the `lopa` command, `serving` the server behind `lopa serve`, `jobs` decodes files of prompts on many groups.
They share `batch` (files of requests and their results), `openai` (requests and responses of OpenAI's API), `choices`
(from a request to the choices that answer it) and `command_line` (options and exit statuses). `deploy` has files for
Kubernetes, Slurm and Docker.
"""

from lopa_ray.shadowing import refuse_shadowed_packages

refuse_shadowed_packages()

import actors as actors  # noqa: E402 - before Ray, because it sets Ray's authentication
