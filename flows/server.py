"""The Prefect server of this project: found where it runs already, else started for as long as it is needed.

Nothing here imports Prefect in the process that asks: the server gets a head start while that one imports.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tasks.stage.failure import ResourceError
from tasks.stage.logs import switch_off_telemetry
from tasks.stage.parent import set_parent_death_signal

HOME = Path(".prefect")
LOG = Path(".work/logs/prefect_server.log")
_STARTUP_SECONDS = 180.0


class Server:
    """A Prefect server to talk to; only one that was started here is ever ended here."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None = None) -> None:
        self.url = url
        self._process = process

    @property
    def is_ours(self) -> bool:
        """True if this object started the server and will end it."""
        return self._process is not None

    @property
    def is_running(self) -> bool:
        """False once a server that was started here has ended; of another's nothing is known."""
        return self._process is None or self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Return once the server answers. Raises ResourceError if it ends, or takes longer than three minutes."""
        deadline = time.monotonic() + _STARTUP_SECONDS
        while not _answers(f"{self.url}/health"):
            if self._process is None:
                raise ResourceError(f"no Prefect server answers at {self.url}; start it, or unset PREFECT_API_URL")
            if not self.is_running:
                raise ResourceError(f"the Prefect server ended with {self._process.returncode}; see {LOG}")
            if time.monotonic() > deadline:
                raise ResourceError(f"the Prefect server took over {_STARTUP_SECONDS:.0f} s to start; see {LOG}")
            time.sleep(0.1)

    def end(self) -> None:
        """End the server if it was started here; calling it twice is fine."""
        if self._process is None or not self.is_running:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def set_environment() -> None:
    """Keep Prefect's files in the project, and its usage data at home."""
    switch_off_telemetry()
    # Under a missing folder the server would wait for three minutes.
    HOME.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(HOME.resolve()))
    # Our plugin is for the command line that somebody types; where Prefect starts itself it only gets in the way.
    os.environ["PREFECT_PLUGINS_ENABLED"] = "false"


def find_or_start(*, temporary: bool) -> Server:
    """Return the server to use, which may still be starting; PREFECT_API_URL is set to it.

    In this order: the one that PREFECT_API_URL names, unless it does not answer and a temporary one will do; this
    project's own, at the address in prefect.toml, if `make serve` runs; a new one, with the UI and schedules at that
    address or, if temporary, without both and at any free port. Raises ResourceError if somebody else has the address.
    """
    set_environment()
    if url := os.environ.get("PREFECT_API_URL"):
        if not temporary or _answers(f"{url.rstrip('/')}/health"):
            return Server(url.rstrip("/"))
        sys.stderr.write("ddp-compare: no Prefect server answers at PREFECT_API_URL; this run is recorded here alone\n")
    url = address_in_settings()
    if _is_ours(url):
        server = Server(url)
    elif temporary:
        server = _start(("127.0.0.1", 0), temporary=True)
    else:
        parts = urllib.parse.urlsplit(url)
        server = _start((parts.hostname or "127.0.0.1", parts.port or 4200), temporary=False)
    os.environ["PREFECT_API_URL"] = server.url
    return server


def address_in_settings() -> str:
    """Return `api.url` of prefect.toml: where the Prefect command line looks for the server."""
    settings = tomllib.loads(Path("prefect.toml").read_text(encoding="utf-8"))
    return str(settings["api"]["url"]).rstrip("/")


def _start(address: tuple[str, int], *, temporary: bool) -> Server:
    try:
        listening = socket.create_server(address)
    except OSError as error:
        raise ResourceError(
            f"port {address[1]} is not to be had ({error.strerror}); free it, or change api.url in prefect.toml"
        ) from None
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with listening, LOG.open("wb") as log:
        host, port = listening.getsockname()[:2]
        url = f"http://{host}:{port}/api"
        command = [sys.executable, "-m", "flows.server", "--socket", str(listening.fileno())]
        process = subprocess.Popen(
            [*command, "--temporary"] if temporary else command,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PREFECT_API_URL": url, "PREFECT_SERVER_UI_API_URL": url},
            # Ctrl-C on the terminal is for us alone: the server has to outlive the flow.
            start_new_session=True,
        )
    return Server(url, process)


def _answers(url: str) -> bytes:
    with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
        return bytes(answer.read())
    return b""


def _is_ours(url: str) -> bool:
    """Return True if the server there keeps its files in this project."""
    try:
        home = json.loads(_answers(f"{url}/admin/settings") or b"{}").get("home", "")
    except ValueError:
        return False
    return bool(home) and Path(home) == Path(os.environ["PREFECT_HOME"])


def _main() -> None:
    set_parent_death_signal(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="flows.server")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--temporary", action="store_true")
    arguments = parser.parse_args()
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=arguments.temporary, final=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=arguments.socket)])


if __name__ == "__main__":
    _main()
