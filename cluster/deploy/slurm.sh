#!/usr/bin/env bash
# A job on nodes that Slurm gives: a Ray cluster over all of them, which ends with the job.
#   sbatch cluster/deploy/slurm.sh --input /data/prompts.jsonl --output /data/results.jsonl \
#       --config d2f-dream-7b --groups 16 --workers 1
# Arguments go to `python -m cluster.jobs`; input and output lie where all nodes see them, and so does the checkpoint,
# unless it is named as on the Hugging Face Hub: each node then downloads it into its HF_HOME. With the same arguments a
# job that ran out of time goes on where it was.
#SBATCH --job-name=lopa-ray
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -euo pipefail

# An environment with lopa-ray in it: the nodes' own, or an environment that all of them see.
if [[ -n "${LOPA_VENV:-}" ]]; then
    # shellcheck disable=SC1091 # it is the user's
    source "$LOPA_VENV/bin/activate"
fi

export RAY_USAGE_STATS_ENABLED=0
head="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
# Several jobs may share a head's network: each has a port of its own.
port="$((6379 + SLURM_JOB_ID % 1000))"
# Where `python -m cluster.jobs` finds this Ray, and what keeps other users of the nodes out of it. In the environment,
# since nodes need not share a home folder.
export RAY_ADDRESS="$head:$port" RAY_AUTH_MODE=token
RAY_AUTH_TOKEN="$(umask 077 && ray get-auth-token --generate)"
export RAY_AUTH_TOKEN

# On every node: start Ray; on the first: run the command, and end Ray everywhere when it is done.
srun --kill-on-bad-exit=0 ray symmetric-run \
    --address "$head:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \
    -- python -m cluster.jobs "$@"
