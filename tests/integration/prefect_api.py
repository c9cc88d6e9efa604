"""The few questions that tests ask a Prefect server, over plain HTTP: no Prefect setting of the test process counts."""

import json
import time
import urllib.error
import urllib.request
from typing import Any


class Api:
    """A server's REST interface."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **body: Any) -> Any:
        """Return the answer to a POST of these fields."""
        return self.post(path, body)

    def post(self, path: str, body: Any) -> Any:
        """Return the answer to a POST of any JSON value."""
        content = json.dumps(body).encode()
        return self._answer(urllib.request.Request(f"{self.url}/{path}", content, {"Content-Type": "application/json"}))

    def read(self, path: str) -> Any:
        """Return the answer to a GET."""
        return self._answer(urllib.request.Request(f"{self.url}/{path}"))

    def _answer(self, request: urllib.request.Request) -> Any:
        for wait in (0.5, 1.0, 2.0, None):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.loads(answer.read())
            except urllib.error.HTTPError as error:
                # SQLite is busy with another writer: Prefect's own client asks again, too.
                if error.code != 503 or wait is None:
                    raise
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def last_flow_run(self) -> dict[str, Any]:
        """Return the flow run that was started last."""
        run: dict[str, Any] = self.ask("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
        return run

    def states(self, flow_run: dict[str, Any]) -> dict[str, str]:
        """Return task run name -> state name, in the order of their start."""
        runs = self.ask("task_runs/filter", flow_runs={"id": {"any_": [flow_run["id"]]}})
        runs.sort(key=lambda run: run["start_time"])
        return {run["name"]: run["state_name"] for run in runs}
