"""Submit a job that decodes a file of prompts, follow its log, and count its results.

    export RAY_AUTH_MODE=token                    # to show the token that the head asks for
    ray get-auth-token --generate > /dev/null     # makes ~/.ray/auth_token unless it is there
    ray start --head
    python examples/submit_a_job.py --folder /tmp/lopa-job

With the same folder a job that was stopped goes on where it was. Input and output lie on the head here; on a
cluster a URL (s3://..., gs://...) or a shared folder is as good. Run it from the root of the checkout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from pathlib import Path
from urllib.request import getproxies

from ray.job_submission import JobStatus, JobSubmissionClient

PROBLEMS = [
    "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?",
    "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?",
    "How many stamps does Zoe have left from 9 jars of 6 stamps if she gives 23 to Kate?",
    "Sam has $50. He buys 4 books for $9 each. How much money does he have left?",
]


async def follow(client: JobSubmissionClient, job: str) -> None:
    """Print the log of a job until it ends."""
    async for lines in client.tail_job_logs(job):
        print(lines, end="")


def main() -> None:
    """Parse the command line, write prompts, submit, follow, count."""
    parser = argparse.ArgumentParser(description="Decode a file of prompts as a job.")
    parser.add_argument("--address", default="http://127.0.0.1:8265", help="the head's dashboard")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--python", default="python", help="on the head")
    parser.add_argument("options", nargs="*", help="further options of the job, after --")
    arguments = parser.parse_args()

    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    prompts, results = folder / "prompts.jsonl", folder / "results.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": problem}) + "\n" for problem in PROBLEMS))

    # This machine is not asked by way of a proxy that the environment may name.
    os.environ["no_proxy"] = ",".join([getproxies().get("no", ""), "127.0.0.1", "localhost"])
    client = JobSubmissionClient(arguments.address)
    command = [arguments.python, "-m", "cluster.jobs", "--input", str(prompts), "--output", str(results)]
    job = client.submit_job(
        entrypoint=shlex.join([*command, *arguments.options]), runtime_env={"working_dir": "."}
    )
    asyncio.run(follow(client, job))
    if client.get_job_status(job) != JobStatus.SUCCEEDED:
        sys.exit(f"job {job}: {client.get_job_info(job).message}")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    print(f"{len(rows)} results, {sum(row['tokens'] for row in rows)} tokens, in {results}")


if __name__ == "__main__":
    main()
