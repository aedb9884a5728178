"""The outside world: the command line, and what runs decode groups on a cluster.

`cli` is the `lopa` command, `serving` and `app` the server behind `lopa serve`, `jobs` decodes files of prompts on many
groups. All of them share `batch` (files of requests and their results), `openai` (requests and responses of OpenAI's
API) and `choices` (from a request to the choices that answer it). `deploy` has files for Kubernetes, Slurm and Docker.
"""

import actors as actors  # before Ray, because it sets Ray's authentication
