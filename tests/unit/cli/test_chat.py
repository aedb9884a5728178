"""`lopa chat`: a conversation with an engine or a server, which errors do not end."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from typer.testing import CliRunner, Result

from cluster.cli import app
from cluster.cli.chat import converse
from cluster.cli.chat_partner import Message
from cluster.cli.server_partner import ServerPartner
from lopa_ray.errors import ClusterError, PromptError, SettingsError
from support.fake_backend import MODEL, OTHER_MODEL, WORDS, Server
from support.ports import free_port
from support.terminal import run_in_terminal
from support.verified_decode import PROBLEM

KEY = "a-key"
HTTP_SETTINGS = {"api_keys": [KEY]}
ANSWER = "".join(WORDS)

torch.set_num_threads(1)


def chat(typed: str, *options: str) -> Result:
    result = CliRunner().invoke(app, ["chat", *options], input=typed, env={"OPENAI_API_KEY": KEY})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


class Scripted:
    """Answers with what it was asked last; raises for a message that begins with "fail"."""

    def __init__(self) -> None:
        self.note = "what it took"
        self.asked: list[list[Message]] = []

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        self.asked.append(list(messages))
        text = messages[-1]["content"]
        yield "You said "
        if text.startswith("fail"):
            raise PromptError("no answer to this")
        yield text


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have a user type these lines in a terminal, and then Ctrl-D."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", Mock(side_effect=[*lines, EOFError]))


def test_messages_and_answers_are_part_of_the_next_prompt(server: Server) -> None:
    done = chat("Hello\n\nGo on\n", "--url", server.url, "--system", "Be brief.")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{ANSWER}\n{ANSWER}\n"
    (model, first), (_, second) = server.backend.requests
    assert model == MODEL
    assert [message["role"] for message in first.prompts[0]] == ["system", "user"]  # type: ignore[index, union-attr]
    contents = [message["content"] for message in second.prompts[0]]  # type: ignore[index, union-attr]
    assert contents == ["Be brief.", "Hello", ANSWER, "Go on"]


def test_options_are_those_of_the_requests(server: Server) -> None:
    options = ("--model", OTHER_MODEL, "-n", "7", "--temperature", "0.5", "--seed", "3", "-b", "2")
    done = chat("Hello\n", "--url", f"{server.url}/v1", *options)
    assert done.exit_code == 0, done.stderr
    ((model, request),) = server.backend.requests
    assert model == OTHER_MODEL
    expected = {"max_new_tokens": 7, "temperature": 0.5, "seed": 3, "num_branches": 2}
    assert expected.items() <= request.settings.items()


def test_an_error_is_a_line_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partner = Scripted()
    type_lines(monkeypatch, "one", "fail here", "two")
    converse(partner, None)
    out, err = capsys.readouterr()
    assert out == "You said one\nYou said \nYou said two\n"
    assert "Error: no answer to this\n" in err
    assert [message["content"] for message in partner.asked[-1]] == ["one", "You said one", "two"]


def test_commands_of_a_person(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    partner = Scripted()
    saved = tmp_path / "saved.json"
    type_lines(
        monkeypatch, "one", "/reset", "//two", f"/save {saved}", "/help", "/save", "/quit", "/exit", "never"
    )
    converse(partner, "Be brief.")
    _, err = capsys.readouterr()
    assert [message["content"] for message in partner.asked[-1]] == ["Be brief.", "/two"]
    assert [message["role"] for message in json.loads(saved.read_text())] == ["system", "user", "assistant"]
    assert "/reset " in err and "got '/quit'; allowed: /help" in err and err.count("Error: ") == 2


def test_a_folder_that_cannot_be_written_costs_the_history_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    type_lines(monkeypatch, "one")
    converse(Scripted(), None)
    out, err = capsys.readouterr()
    assert out == "You said one\n" and "no history of messages: " in err


def test_ctrl_c_ends_the_answer_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Scripted):
        def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
            if messages[-1]["content"] == "long":
                yield "It was"
                raise KeyboardInterrupt
            yield from super().answer(messages)

    partner = Interrupted()
    type_lines(monkeypatch, "long", "short")
    converse(partner, None)
    out, err = capsys.readouterr()
    assert out == "It was\nYou said short\n" and "The answer was ended" in err
    assert len(partner.asked) == 1 and len(partner.asked[0]) == 1


def test_a_server_that_does_not_answer(server: Server) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    done = chat("Hello\nAgain\n", "--url", nowhere)
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.count(f"Error: cannot reach {nowhere}/v1 ") == 2

    def errors(url: str, key: str | None, model: str | None) -> str:
        with pytest.raises((SettingsError, ClusterError)) as raised:
            list(ServerPartner(url, key, model, {}).answer([{"role": "user", "content": "Hello"}]))
        return str(raised.value)

    assert "answered 401" in errors(server.url, None, MODEL)
    assert "answered 404" in errors(server.url, KEY, "no-such-model")
    assert "did not answer as an OpenAI-compatible server does" in errors(f"{server.url}/docs?", KEY, None)
    server.backend.failure = ClusterError("the group is gone")
    assert "ended the answer: the group is gone" in errors(server.url, KEY, MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--url", "ftp://x"), "--url: got 'ftp://x'; allowed: an address like"),
        (("--url", "http://x", "--config", "demo"), "--url and --config exclude each other"),
        (("--url", "http://x", "--set", "model.dtype=auto"), "allowed with --url: decode.KEY"),
        (("--local", "--workers", "2"), "--local and --workers exclude each other"),
    ],
)
def test_options_that_exclude_each_other(options: tuple[str, ...], message: str) -> None:
    done = chat("", *options)
    assert done.exit_code == 2 and message in done.stderr


@pytest.mark.medium
def test_this_process_answers() -> None:
    done = chat(f"{PROBLEM}\n", "--local", "-n", "64")
    assert done.exit_code == 0 and "does not converse; --model takes another" in done.stderr
    generated = CliRunner().invoke(app, ["generate", "--local", "-n", "64", PROBLEM]).stdout
    assert generated.startswith(done.stdout.strip())


@pytest.mark.medium
def test_in_a_terminal() -> None:
    command = [sys.executable, "-m", "cluster.cli", "chat", "--local", "-n", "32"]
    shown = run_in_terminal(command, 80, [("> ", f"{PROBLEM}\n"), ("TPF", ""), ("> ", "\x04")])
    lines = [line.rstrip() for line in shown.replace("\r", "\n").splitlines()]
    assert any("Loading demo" in line for line in lines)
    assert any(" tokens in " in line and "TPF" in line for line in lines)
