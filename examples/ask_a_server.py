"""Ask a running `lopa serve` with OpenAI's client: an answer as a whole, and one as a stream.

lopa serve &
python examples/ask_a_server.py [--url http://127.0.0.1:8000/v1] [--model demo] [--key KEY]
"""

from __future__ import annotations

import argparse

from openai import DefaultHttpxClient, OpenAI

PROBLEM = "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?"


def main() -> None:
    """Parse the command line and ask twice."""
    parser = argparse.ArgumentParser(description="Ask a running server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--key", default="none", help="an API key, if the server wants one")
    arguments = parser.parse_args()
    # This machine is not asked by way of a proxy that the environment may name.
    direct = DefaultHttpxClient(mounts={"all://127.0.0.1": None, "all://localhost": None})
    client = OpenAI(base_url=arguments.url, api_key=arguments.key, http_client=direct)

    answer = client.chat.completions.create(
        model=arguments.model,
        messages=[{"role": "user", "content": PROBLEM}],
        max_tokens=64,
        extra_body={"lopa": {"num_branches": 8, "lookahead": "verified"}},  # settings of diffusion decoding
    )
    stats = answer.model_extra["lopa"] if answer.model_extra else {}
    print(answer.choices[0].message.content)
    print(f"{stats['tokens']} tokens in {stats['steps']} steps, TPF {stats['tpf']:.2f}\n")

    stream = client.chat.completions.create(
        model=arguments.model,
        messages=[{"role": "user", "content": PROBLEM}],
        max_tokens=64,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
