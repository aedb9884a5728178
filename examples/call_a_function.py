"""Have a running `lopa serve` call a function, with OpenAI's client: the call, its result, and the answer to that.

lopa serve &
python examples/call_a_function.py [--url http://127.0.0.1:8000/v1] [--model demo] [--key KEY]

The demo model was not trained for tools: its call is valid, but the arguments and the answer make no sense. Serve a
model that was, and name it with --model.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from openai import DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam


def multiply(a: int, b: int) -> int:
    """The function that the model may call."""
    return a * b


NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "The product of two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": NUMBER, "b": NUMBER},
                "required": ["a", "b"],
            },
        },
    }
]


def main() -> None:
    """Parse the command line, and ask until the model has its answer."""
    parser = argparse.ArgumentParser(description="Have a running server call a function.")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--key", default="none", help="an API key, if the server wants one")
    arguments = parser.parse_args()
    if arguments.model == "demo":
        print(
            "The demo model was not trained for tools: its call is valid, but arguments and answer make no sense.",
            file=sys.stderr,
        )
    # This machine is not asked by way of a proxy that the environment may name.
    direct = DefaultHttpxClient(mounts={"all://127.0.0.1": None, "all://localhost": None})
    client = OpenAI(base_url=arguments.url, api_key=arguments.key, http_client=direct)
    messages: list[Any] = [{"role": "user", "content": "How many pens are in 6 boxes of 8 pens?"}]

    def ask(tool_choice: Any) -> Any:
        chat: list[ChatCompletionMessageParam] = messages
        answer = client.chat.completions.create(
            model=arguments.model, messages=chat, tools=TOOLS, tool_choice=tool_choice, max_tokens=64
        )
        return answer.choices[0].message

    # The arguments are always valid under the schema. What they are is up to the model.
    message = ask("required")
    messages.append(message)
    for call in message.tool_calls:
        result = multiply(**json.loads(call.function.arguments))
        print(f"{call.function.name}({call.function.arguments}) is {result}")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    print(ask("none").content)


if __name__ == "__main__":
    main()
