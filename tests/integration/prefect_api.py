"""The few questions that tests ask a Prefect server, over plain HTTP: no Prefect setting of the test process counts."""

import base64
import json
import time
import urllib.error
import urllib.request
import uuid

import psutil


def find_status(url, body=None, **headers):
    """Return the status of the answer to a request with these headers alone; 0 where nobody answers."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Api:
    """A server's REST interface, for whoever has its credentials."""

    def __init__(self, environment):
        """`environment` is what tells Prefect of the server: PREFECT_API_URL and PREFECT_API_AUTH_STRING."""
        self.environment = {name: environment[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING")}
        self.url = self.environment["PREFECT_API_URL"]
        token = base64.b64encode(self.environment["PREFECT_API_AUTH_STRING"].encode()).decode()
        self.headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}

    @classmethod
    def of_served(cls, project):
        """Return the one of `make serve` in the project."""
        lines = (project / ".prefect/server.env").read_text().splitlines()
        return cls(dict(line.split("=", 1) for line in lines))

    def ask(self, path, **body):
        """Return the answer to a POST of these fields."""
        return self.post(path, body)

    def post(self, path, body):
        """Return the answer to a POST of any JSON value."""
        if "Prefect-Csrf-Token" not in self.headers:
            client = str(uuid.uuid4())
            token = self.read(f"csrf-token?client={client}")["token"]
            self.headers.update({"Prefect-Csrf-Client": client, "Prefect-Csrf-Token": token})
        content = json.dumps(body).encode()
        return self._answer(urllib.request.Request(f"{self.url}/{path}", content, self.headers))

    def read(self, path):
        """Return the answer to a GET."""
        return self._answer(urllib.request.Request(f"{self.url}/{path}", headers=self.headers))

    def _answer(self, request):
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

    def require_closed_to_others(self, *pids):
        """Fail unless these processes listen on loopback, and answer nobody without credentials and no other site."""
        sockets = [at for pid in pids for at in psutil.Process(pid).net_connections("inet")]
        assert {at.laddr.ip for at in sockets if at.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        runs = f"{self.url}/flow_runs/filter"
        assert find_status(f"{self.url}/health") == 200
        assert find_status(f"{self.url}/admin/settings") == 401
        assert find_status(runs, {}) in (401, 403)
        self.ask("flow_runs/filter", limit=1)
        assert find_status(runs, {}, **self.headers, Origin=self.url.removesuffix("/api")) == 200
        # Which others are refused: tests/tasks/services/test_own_site.py.
        assert find_status(runs, {}, **self.headers, Origin="http://evil.example") == 403
        without_token = {name: value for name, value in self.headers.items() if "Csrf" not in name}
        assert find_status(runs, {}, **without_token) == 403

    def last_flow_run(self):
        """Return the flow run that was started last."""
        return self.ask("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]

    def states(self, flow_run):
        """Return task run name -> state name, in the order of their start."""
        return {run["name"]: run["state_name"] for run in self._list_task_runs(flow_run)}

    def edges(self, flow_run):
        """Return task run name -> those that its graph shows before it."""
        runs = self._list_task_runs(flow_run)
        names = {run["id"]: run["name"] for run in runs}
        return {run["name"]: {names[one["id"]] for one in run["task_inputs"].get("wait_for", [])} for run in runs}

    def _list_task_runs(self, flow_run):
        runs = self.ask("task_runs/filter", flow_runs={"id": {"any_": [flow_run["id"]]}})
        return sorted(runs, key=lambda run: str(run["start_time"]))
