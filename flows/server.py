"""The Prefect server of this project: found where it runs already, else started for as long as it is needed.

It listens on loopback, is for the user who started it alone, and does nothing for pages of other sites. Nothing here
imports Prefect in the process that asks: the server gets a head start while that one imports.
"""

import argparse
import contextlib
import fcntl
import gc
import http.client
import itertools
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ddp_audit.process.lifeline import set_parent_death_signal
from tasks.process.failure import FREE_SPACE, ConfigurationError, ResourceError
from tasks.process.logs import switch_off_telemetry
from tasks.process.proxies import bypass_proxies_to
from tasks.services.own_site import OwnSite, keep_credentials, make_credentials, make_private_folder, write_private

HOME = Path(".prefect")
SERVED = HOME / "server.env"
"""What `make serve` tells other commands: where its server is, and what it asks for. Readable by its user alone."""
LOGIN = HOME / "login"
"""Its credentials, for its user alone; they stay from one `make serve` to the next, until somebody deletes the file."""
LOCK = HOME / "serve.lock"
LOG = Path(".work/logs/prefect_server.log")
_STARTUP_SECONDS = 120.0
_SECONDS_BETWEEN_WORDS = 5.0


class Server:
    """A Prefect server to talk to; only one that was started here is ever ended here."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None = None) -> None:
        self.url = url
        bypass_proxies_to(url)
        self._process = process

    @property
    def is_ours(self) -> bool:
        """True if this object started the server and will end it."""
        return self._process is not None

    @property
    def is_running(self) -> bool:
        """False once a server that was started here has ended; of another's nothing is known."""
        return self._process is None or self._process.poll() is None

    def wait_until_ready(self, *, say: Callable[[str], None] = lambda _: None) -> None:
        """Return once the server answers; `say` gets a line every few seconds until it does.

        Raises ResourceError if it ends, or takes longer than two minutes.
        """
        started = said = time.monotonic()
        deadline = started + _STARTUP_SECONDS
        while not is_reachable(self.url):
            if self._process is None:
                raise ResourceError(f"no Prefect server answers at {self.url}; start it, or unset PREFECT_API_URL")
            if not self.is_running:
                raise ResourceError(f"the Prefect server ended with {self._process.returncode}; see {LOG}")
            if time.monotonic() > deadline:
                raise ResourceError(f"the Prefect server took over {_STARTUP_SECONDS:.0f} s to start; see {LOG}")
            if (now := time.monotonic()) > said + _SECONDS_BETWEEN_WORDS:
                said = now
                say(f"the Prefect server is still starting, since {now - started:.0f} s")
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
    """Keep Prefect's files in the project, closed to other users, and its usage data at home."""
    switch_off_telemetry()
    # Under a missing folder the server would wait for minutes.
    make_private_folder(HOME)
    os.environ.setdefault("PREFECT_HOME", str(HOME.resolve()))
    # Our plugin is for the command line that somebody types; where Prefect starts itself it only gets in the way.
    os.environ["PREFECT_PLUGINS_ENABLED"] = "false"


def read_served_environment() -> dict[str, str]:
    """Return the environment in which Prefect talks to the server of `make serve`; empty if that does not run.

    A file that a killed one has left is not used: somebody else may listen there by now.
    """
    with contextlib.suppress(OSError), LOCK.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # one that is only just starting has not written it yet
            return dict(line.split("=", 1) for line in SERVED.read_text(encoding="utf-8").splitlines())
    return {}


def is_available() -> bool:
    """Return True if a server runs already that a comparison would be recorded by: yours, or that of `make serve`."""
    return bool(os.environ.get("PREFECT_API_URL") or read_served_environment())


def is_reachable(url: str) -> bool:
    """Return whether a server answers there."""
    try:
        urllib.request.urlopen(f"{url}/health", timeout=5).close()
    except urllib.error.HTTPError as error:
        # Somebody is there who wants to know who asks, as Prefect's client says.
        return error.code in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return isinstance(getattr(error, "reason", None), ssl.SSLError)
    return True


def find_or_start(*, temporary: bool) -> Server:
    """Return the server to use, which may still be starting; the environment says where it is and what it asks for.

    In this order: the one that PREFECT_API_URL names, unless it does not answer and a temporary one will do; this
    project's own, if `make serve` runs; a new one, with the UI and schedules at the address in prefect.toml or, if
    temporary, without both and at any free port. Raises ResourceError if somebody else has the address.
    """
    set_environment()
    if url := os.environ.get("PREFECT_API_URL"):
        if not temporary or is_reachable(url.rstrip("/")):
            return Server(url.rstrip("/"))
        sys.stderr.write("ddp-compare: no Prefect server answers at PREFECT_API_URL; this run is recorded here alone\n")
    served = read_served_environment()
    if temporary and served and is_reachable(served["PREFECT_API_URL"]):
        os.environ.update(served)
        return Server(served["PREFECT_API_URL"])
    return _start(("127.0.0.1", 0) if temporary else _read_address(), temporary=temporary)


def _read_address() -> tuple[str, int]:
    """Return where `make serve` listens: `api.url` of prefect.toml, with another port if the environment says so."""
    settings = tomllib.loads(Path("prefect.toml").read_text(encoding="utf-8"))
    parts = urllib.parse.urlsplit(str(settings["api"]["url"]))
    port = os.environ.get("PREFECT_SERVER_API_PORT") or str(parts.port or 4200)
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigurationError(f"PREFECT_SERVER_API_PORT: got {port!r}; allowed: 1 to 65535")
    if parts.hostname not in ("127.0.0.1", "localhost"):
        raise ConfigurationError(
            f"prefect.toml: api.url: got the host {parts.hostname}; allowed: 127.0.0.1, since `make serve` is for this "
            "machine alone; PREFECT_API_URL names a server elsewhere (docs/team.md)"
        )
    return "127.0.0.1", int(port)


def _start(address: tuple[str, int], *, temporary: bool) -> Server:
    try:
        listening = socket.create_server(address)
    except OSError as error:
        raise ResourceError(
            f"port {address[1]} is not to be had ({os.strerror(error.errno or 0)}); free it, or choose another one: "
            "PREFECT_SERVER_API_PORT=4201 make serve"
        ) from None
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with listening, LOG.open("wb") as log:
        _set_damaged_aside(HOME / "prefect.db")
        origin = "http://{}:{}".format(*listening.getsockname())
        credentials = make_credentials() if temporary else keep_credentials(LOGIN)
        access = {"PREFECT_API_URL": f"{origin}/api", "PREFECT_API_AUTH_STRING": credentials}
        os.environ.update(access)
        command = [sys.executable, "-m", "flows.server", "--socket", str(listening.fileno())]
        process = subprocess.Popen(
            [*command, "--temporary"] if temporary else command,
            pass_fds=[listening.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "PREFECT_SERVER_UI_API_URL": access["PREFECT_API_URL"],
                "PREFECT_SERVER_API_AUTH_STRING": access["PREFECT_API_AUTH_STRING"],
                "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
                "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": origin,
            },
            # Ctrl-C on the terminal is for us alone: the server has to outlive the flow.
            start_new_session=True,
        )
    if not temporary:
        write_private(SERVED, "".join(f"{name}={value}\n" for name, value in access.items()))
    return Server(access["PREFECT_API_URL"], process)


def _main() -> None:
    set_parent_death_signal(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="flows.server")
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--temporary", action="store_true")
    arguments = parser.parse_args()
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=arguments.temporary, final=True)
    # What is imported stays: nothing goes through all of it again.
    gc.freeze()
    own = OwnSite(app, address=os.environ["PREFECT_API_URL"].removesuffix("/api"))
    config = uvicorn.Config(own, log_level="error", lifespan="on", timeout_graceful_shutdown=3)
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=arguments.socket)])


def _set_damaged_aside(database: Path) -> None:
    """Give a damaged database another name, in one line, so that the server makes a new one.

    Raises ResourceError where nothing can be said of it, such as on a full disk.
    """
    if not database.exists():
        return
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",):
                return
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        # What has none quotes the damage; bits above these say more of it.
        kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return
        if kind not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise ResourceError(f"{database}: {error}; mend that or {FREE_SPACE}") from None
    names = (f"{database}.damaged{number or ''}" for number in itertools.count())
    aside = next(name for name in names if not Path(name).exists())
    for part in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"{database}{part}").replace(f"{aside}{part}")
    sys.stderr.write(
        f"ddp-compare: {database} was damaged; it is {aside} now, and Prefect begins a new one "
        "(earlier runs are no longer shown, no result is lost)\n"
    )


if __name__ == "__main__":
    _main()
