"""How a Prefect server of ours starts; that it serves is in tests/integration/test_prefect_access.py."""

import subprocess
import sys
from pathlib import Path

_STARTED = """
import gc, sys, types

def create_app(**_):
    print(gc.isenabled(), gc.get_freeze_count())

def serve(sockets):
    print(gc.isenabled(), gc.get_freeze_count() > 1000)
    sys.exit(0)

for name in ("prefect", "prefect.server", "prefect.server.api", "prefect.server.api.server", "uvicorn"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["prefect.server.api.server"].create_app = create_app
sys.modules["uvicorn"].Config = lambda *_, **__: None
sys.modules["uvicorn"].Server = lambda _: types.SimpleNamespace(run=serve)
from flows import server
server.socket.socket = lambda fileno: None
sys.argv = ["flows.server", "--socket", "3"]
server._main()
"""


def test_what_a_server_has_imported_is_never_looked_through_for_garbage(project: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _STARTED],
        cwd=project, env={"PREFECT_API_URL": "http://127.0.0.1:1/api"}, capture_output=True, text=True,
    )  # fmt: skip
    assert said.stdout.splitlines() == ["True 0", "True True"], said.stderr
