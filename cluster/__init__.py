"""The outside world: the command line, and what runs decode groups on a cluster.

`cli` is the `lopa` command, `serving` and `app` the server behind `lopa serve`, `jobs` decodes files of prompts on many
groups; `batch` and `report` (files of prompts, results as JSON) serve both `cli` and `jobs`. `deploy` has files for
Kubernetes, Slurm and Docker.
"""

import actors as actors  # before Ray, whose authentication it sets
