"""A W&B server on loopback for tests: what `wandb sync` and `wandb.Api` ask of one, in memory."""

import gzip
import json
import re
from dataclasses import dataclass, field
from typing import Any, Self

from werkzeug.wrappers import Request, Response

from tests.loopback import Loopback

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
        self._loopback = Loopback(Request.application(self._respond))
        self.url = self._loopback.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loopback.close()

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

    def _respond(self, request: Request) -> Response:
        body = request.get_data()
        body = gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body
        answer: dict[str, Any] = {}
        if request.path == "/graphql":
            asked = json.loads(body)
            found = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
            answer = {"data": self.ask(found[1] if found else asked["query"], asked.get("variables") or {})}
            if answer == {"data": {}}:
                self.unknown.append(asked["query"])
        elif stream := re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", request.path):
            self.take_stream(stream[1], json.loads(body))
        elif stored := re.fullmatch(r"/storage/([^/]+)/(.+)", request.path):
            self.runs[stored[1]].files[stored[2]] = body
        elif request.path not in ("/", "/sdk/otel/v1/metrics"):
            self.unknown.append(request.path)
        return Response(json.dumps(answer), mimetype="application/json")
