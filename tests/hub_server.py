"""A Hugging Face Hub on loopback for tests: the real protocol, in memory, with faults on demand.

    with HubServer() as hub:
        hub.add_repo("model", "owner/name", folder)
        hub.fail("500", r"POST .*/commit/", times=2)
        subprocess.run(command, env={**os.environ, **hub.environment(cache=tmp_path, token="hf_...")})

huggingface_hub reads HF_ENDPOINT when it is imported: give the environment to a child process.
Spoken: repository info, tree, paths-info, resolve (with ranges), create, branch, preupload, LFS batch and upload,
commit.
"""

import dataclasses
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub_repos import Repo
from tests.hub_routes import ROUTES, Answer, Call, RefusalError, as_json

PAGE = b"<!DOCTYPE html><title>Sign in</title>"
FaultKind = Literal["500", "503", "429", "drop", "truncate", "lose answer", "stall", "flip", "portal", "login", "wait"]


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose `METHOD /path` the pattern matches.

    drop: the connection closes before the request is looked at. truncate: half of the answer's body arrives.
    lose answer: the request is carried out and the connection closes instead of an answer. stall: no answer comes.
    flip: one bit of the body is another. portal: a web page answers, as in a network that wants a login; login: it is
    somewhere else, and the answer leads there. wait: 429, and the caller is to wait for `seconds`.
    """

    kind: FaultKind
    pattern: str
    times: int
    seconds: int = 0


@dataclass(frozen=True)
class Request:
    """One request that arrived."""

    line: str
    """`METHOD /path`, without the query."""
    num_bytes: int
    """Size of its body."""


class HubServer:
    """The fake Hub as a context manager; `requests` is what arrived, `repos` what it holds."""

    def __init__(self, *, tokens: tuple[str, ...] = ()) -> None:
        self.tokens = tokens
        """What may write, and read private and gated repositories."""
        self.repos: dict[tuple[str, str], Repo] = {}
        """(model or dataset, id) -> repository."""
        self.requests: list[Request] = []
        self.unknown: list[str] = []
        """Requests that this server has no answer for."""
        self.faults: list[Fault] = []
        self.is_closing = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def environment(self, *, cache: Path, token: str | None = None) -> dict[str, str]:
        """Return the variables that make a child process use this Hub, with its cache below `cache`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_TOKEN": token or "",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }

    def add_repo(self, kind: str, repo_id: str, folder: Path | None = None, **flags: bool) -> Repo:
        """Create a repository with the files of a local folder; flags: is_private, is_gated."""
        repo = self.repos[kind, repo_id] = Repo(kind, repo_id, **flags)
        if folder is None:
            repo.add_first_commit()
        else:
            repo.add_folder(folder)
        return repo

    def fail(self, kind: FaultKind, pattern: str, *, times: int = 1, seconds: int = 0) -> None:
        """Let the next `times` requests that match go wrong."""
        self.faults.append(Fault(kind, pattern, times, seconds))

    def count(self, pattern: str) -> int:
        """Return how many requests arrived whose `METHOD /path` the pattern matches."""
        return sum(bool(re.search(pattern, request.line)) for request in self.requests)

    def receive(self, line: str, num_bytes: int) -> Fault | None:
        """Note the request and return what is to go wrong with it."""
        with self._lock:
            self.requests.append(Request(line, num_bytes))
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, line):
                    fault.times -= 1
                    return fault
        return None

    def respond(self, line: str, call: Call) -> Answer:
        """Carry the request out."""
        for pattern, route in ROUTES:
            match = re.fullmatch(pattern, line)
            if match:
                with self._lock:
                    try:
                        return route(call, **match.groupdict())
                    except RefusalError as refusal:
                        return refusal.answer
        self.unknown.append(line)
        return as_json({"error": f"the fake Hub does not know {line}"}, 404)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay silent: tests look at `HubServer.requests`."""

    def _handle(self) -> None:
        url = urlsplit(self.path)
        line = f"{self.command} {unquote(url.path)}"
        body = self._read_body()
        planned = self.hub.receive(line, len(body))
        fault = None if planned is None else planned.kind
        if fault == "stall":
            self.hub.is_closing.wait()
        if fault in ("drop", "stall"):
            self.close_connection = True
            return
        if fault in ("500", "503", "429"):
            status = int(fault)
            self._send(Answer(json.dumps({"error": "injected"}).encode(), status, {"Retry-After": "0"}))
            return
        if planned is not None and fault == "wait":
            self._send(Answer(b"{}", 429, {"Retry-After": str(planned.seconds)}))
            return
        if fault in ("portal", "login") or url.path == "/login":
            leads_there = fault == "login" and url.path != "/login"
            headers = {"Content-Type": "text/html", **({"Location": f"{self.hub.url}/login"} if leads_there else {})}
            self._send(Answer(PAGE, 302 if leads_there else 200, headers))
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        is_authorised = token in self.hub.tokens
        query = parse_qs(url.query)
        call = Call(self.hub.repos, self.hub.url, self.headers, body, query, is_authorised)
        answer = self.hub.respond(line, call)
        if fault == "flip" and answer.body:
            answer = dataclasses.replace(answer, body=bytes([answer.body[0] ^ 1]) + answer.body[1:])
        if fault == "lose answer":
            self.close_connection = True
        else:
            self._send(answer, is_truncated=fault == "truncate")

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, answer: Answer, *, is_truncated: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_truncated:
            self.close_connection = True
            self.wfile.write(answer.body[: len(answer.body) // 2])
        else:
            self.wfile.write(answer.body)
