"""The outside world: the command line, and what runs decode groups on a cluster.

`cli` is the `lopa` command, `serving` the server behind `lopa serve`, `jobs` decodes files of prompts on many groups.
They share `batch` (files of requests and their results), `openai` (requests and responses of OpenAI's API), `choices`
(from a request to the choices that answer it) and `command_line` (options and exit statuses). `deploy` has files for
Kubernetes, Slurm and Docker.
"""

import actors as actors  # before Ray, because it sets Ray's authentication
