"""A W&B server on loopback for tests: what `wandb sync` and `wandb.Api` ask of one, in memory."""

import gzip
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEY = "canary" + "0" * 34
"""What it takes for a key."""


@dataclass
class Run:
    """One run."""

    name: str
    """What a reader sees."""
    config: dict[str, Any]
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Line of the history -> its values."""
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    is_finished: bool = False


class WandbServer:
    """The server as a context manager; `runs` is what it shows."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        """By id."""
        self.deleted: set[str] = set()
        """Ids of deleted runs, which W&B takes for no other."""
        self.unknown: list[str] = []
        """Requests that this server has no answer for."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"wandb": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def ask(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer a question of the GraphQL interface."""
        if name == "UpsertBucket":
            run_id = variables["name"]
            assert run_id not in self.deleted, "W&B refuses the id of a deleted run"
            is_new = run_id not in self.runs
            run = self.runs.setdefault(run_id, Run(variables["displayName"], {}))
            run.config |= json.loads(variables["config"] or "{}")
            bucket = {"id": run_id, "name": run_id, "displayName": run.name, "config": "{}", "historyLineCount": 0}
            project = {"id": "1", "name": variables["project"], "entity": {"id": "2", "name": "me"}}
            return {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": is_new}}
        if name == "CreateRunFiles":
            at = f"{self.url}/storage/{variables['run']}"
            files = [{"name": file, "uploadUrl": f"{at}/{file}"} for file in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        if name in ("Viewer", "GetDefaultEntity"):
            viewer = {"id": "2", "entity": "me", "username": "me", "email": "me@example.org", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        if name == "DeleteRun":
            self.runs.pop(variables["id"])
            self.deleted.add(variables["id"])
            return {"deleteRun": {"clientMutationId": None}}
        if name == "Run":
            return {"project": {"run": self._describe(variables["name"])}}
        return {}

    def _describe(self, run_id: str) -> dict[str, Any] | None:
        run = self.runs.get(run_id)
        if run is None:
            return None
        empty = dict.fromkeys(("group", "jobType", "commit", "sweepName", "notes", "readOnly"))
        return empty | {
            "id": run_id, "name": run_id, "displayName": run.name, "projectId": "1", "state": "finished", "tags": [],
            "config": json.dumps(run.config), "summaryMetrics": json.dumps(run.summary), "systemMetrics": "{}",
            "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00", "historyLineCount": 0,
            "user": {"name": "me", "username": "me"}, "description": "", "historyKeys": {},
        }  # fmt: skip

    def take_stream(self, run_id: str, body: dict[str, Any]) -> None:
        """Take lines of files, each at its offset: what comes twice stands once."""
        run = self.runs[run_id]
        for file, part in body.get("files", {}).items():
            for number, line in enumerate(part["content"], part["offset"]):
                if file == "wandb-history.jsonl":
                    run.history[number] = json.loads(line)
                elif file == "wandb-summary.json":
                    run.summary = json.loads(line)
        run.is_finished = body.get("complete", run.is_finished)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wandb: WandbServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay silent."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        answer: dict[str, Any] = {}
        if self.path == "/graphql":
            asked = json.loads(body)
            found = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            name = found[1] if found else asked["query"]
            answer = {"data": self.wandb.ask(name, asked.get("variables") or {})}
            if answer == {"data": {}}:
                self.wandb.unknown.append(asked["query"])
        elif stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path):
            self.wandb.take_stream(stream[1], json.loads(body))
        elif stored := re.fullmatch(r"/storage/([^/]+)/(.+)", self.path):
            self.wandb.runs[stored[1]].files[stored[2]] = body
        elif self.path not in ("/", "/sdk/otel/v1/metrics"):
            self.wandb.unknown.append(self.path)
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _handle  # noqa: N815
