"""A stand-in for the Hugging Face Hub: what huggingface_hub asks of it for downloads, over HTTP on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE_FILES = (".safetensors", ".bin", ".pt")
"""Stored as Git LFS does: identified by their SHA-256."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the log; `path` is without its escapes and its query."""

    method: str
    path: str

    @property
    def file(self) -> str | None:
        """The file of a repository that the request is for."""
        _, separator, rest = self.path.partition("/resolve/")
        return rest.rpartition("/")[2] if separator else None


@dataclass(slots=True)
class Repository:
    """Commits, and the branches and tags that name them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Commit -> path -> content."""
    revisions: dict[str, str] = field(default_factory=dict)
    """Branch or tag -> commit."""
    readers: set[str] | None = None
    """Tokens that may read it, if it is private."""
    accepted: set[str] | None = None
    """Tokens of accounts that accepted its licence, if it is gated. The list of its files is public even so."""

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commit = self.revisions.get(revision, revision)
        return (commit, self.commits[commit]) if commit in self.commits else None


class HubStandIn:
    """A server of repositories, and a log of what it was asked for.

    `tokens` are the tokens that it knows, beside those that may read a private or gated repository.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: set[str] = set()
        self.log: list[Request] = []
        self.statuses: dict[str, int] = {}
        """End of a path -> status that is answered instead of it."""
        self._server = _Server(self)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubStandIn:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def repository(self, name: str, folder: Path, *, revision: str = "main") -> str:
        """Publish the files of a folder, and of those in it, as a commit that `revision` names from now on."""
        repository = self.repositories.setdefault(name, Repository())
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        identity = repr((name, len(repository.commits), {path: _etag(path, files[path]) for path in files}))
        commit = hashlib.sha1(identity.encode()).hexdigest()
        repository.commits[commit] = files
        repository.revisions[revision] = commit
        return commit

    def downloads(self) -> Counter[str]:
        """How often each file was sent."""
        return Counter(request.file for request in self.log if request.method == "GET" and request.file)

    @contextlib.contextmanager
    def unreachable(self) -> Iterator[None]:
        """Connections are refused inside."""
        port = self._server.server_port
        self._stop()
        # A socket that does not listen keeps the port from others.
        with socket.socket() as reserved:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", port))
            try:
                yield
            finally:
                reserved.close()
                self._server = _Server(self, port)
                self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        assert self._thread is not None
        self._thread.join()


class _Server(ThreadingHTTPServer):
    def __init__(self, hub: HubStandIn, port: int = 0) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no failure of the server."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *arguments: object) -> None:
        pass  # tests read the log of the server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub = self.server.hub
        # A revision's slashes are escaped, so the path is taken apart before its escapes are.
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        hub.log.append(Request(self.command, "/" + "/".join(parts)))
        for end, status in hub.statuses.items():
            if hub.log[-1].path.endswith(end):
                return self._refuse(status, None, HTTPStatus(status).phrase)
        match parts:
            case ["api", "agent-harnesses"]:
                return self._send_json({})
            case ["api", "models", organisation, name, *rest]:
                name = f"{organisation}/{name}"
            case [organisation, name, "resolve", *rest] if len(rest) >= 2:
                name = f"{organisation}/{name}"
            case _:
                return self._refuse(404, None, "Sorry, we can't find the page you are looking for.")
        repository = self._readable(name, token)
        if repository is None:
            return None
        is_download = parts[0] != "api"
        revision = rest[0] if is_download else rest[1] if len(rest) > 1 else "main"
        commit_and_files = repository.files(revision)
        if commit_and_files is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        commit, files = commit_and_files
        if is_download:
            return self._send_file(repository, token, commit, files, "/".join(rest[1:]))
        if rest[:1] == ["tree"]:
            return self._send_json([_tree_entry(path, content) for path, content in files.items()])
        siblings = [{"rfilename": path} for path in files]
        return self._send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []})

    def _readable(self, name: str, token: str | None) -> Repository | None:
        """The repository, or None if it may not be read, which has been answered then."""
        hub = self.server.hub
        repository = hub.repositories.get(name)
        known = hub.tokens.union(
            *(tokens or () for one in hub.repositories.values() for tokens in (one.readers, one.accepted))
        )
        if token is not None and token not in known:
            self._refuse(401, None, "Invalid credentials in Authorization header")
        elif repository is None or (repository.readers is not None and token not in repository.readers):
            # Without a token the Hub does not say which repositories there are.
            if token is None:
                self._refuse(401, None, "Invalid username or password.")
            else:
                self._refuse(404, "RepoNotFound", "Repository not found")
        else:
            return repository
        return None

    def _send_file(
        self, repository: Repository, token: str | None, commit: str, files: dict[str, bytes], path: str
    ) -> None:
        if repository.accepted is not None and token not in repository.accepted:
            return self._refuse(401 if token is None else 403, "GatedRepo", "Access to model is restricted.")
        if path not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        content = files[path]
        return self._send(200, content, {"ETag": f'"{_etag(path, content)}"', "X-Repo-Commit": commit})

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
        self._send(
            status, json.dumps({"error": message}).encode(), {"Content-Type": "application/json", **headers}
        )

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def _etag(path: str, content: bytes) -> str:
    """How Git LFS, or Git itself, identifies a content."""
    if path.endswith(LARGE_FILES):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree_entry(path: str, content: bytes) -> dict[str, object]:
    size = {"size": len(content)}
    lfs = {"lfs": {"oid": _etag(path, content), "pointerSize": 134, **size}}
    oid = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": path, "oid": oid, **size, **(lfs if path.endswith(LARGE_FILES) else {})}
