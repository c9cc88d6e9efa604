"""This process as a driver of a Ray cluster: of one that runs, or of one of its own."""

import atexit
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tasks.process.failure import ConfigurationError, DistributedError, ResourceError


class RankConnections:
    """The lines over which ranks of another machine get blocks to run: each comes to a socket of their own user.

    It starts nothing, so that it may wait for all ranks at a time, each in a thread.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="ddp-")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._folder}/line")
        self._listener.listen(128)
        self._lines: dict[int, Connection] = {}

    def get_address(self) -> str:
        """Return the path of the socket."""
        return f"{self._folder}/line"

    def accept(self, line: int) -> bytes:
        """Wait for a rank, which is this line from here on; return what it says first."""
        connection, _ = self._listener.accept()
        self._lines[line] = Connection(connection.detach())
        return self._lines[line].recv_bytes()

    def exchange(self, line: int, message: bytes) -> bytes:
        """Return the rank's answer; raises EOFError or OSError once it has ended."""
        self._lines[line].send_bytes(message)
        return self._lines[line].recv_bytes()

    def close(self) -> None:
        """Hang up: ranks that wait for something to do then end."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for line in self._lines.values():
            line.close()


_TOKEN = Path.home() / ".ray" / "auth_token"
_SECONDS_TO_OPEN = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_SAID_BY_RAY = ("Raylet is terminated", "The node with node id: ", "A worker died or was killed")
"""How lines begin that Ray prints of what is lost."""


def connect(address: str) -> None:
    """Have this process be a driver of the cluster; of one of its own if the address is `local`.

    Not from a thread: such a cluster ends with the thread that started it. Raises ConfigurationError without the
    package or a token, ResourceError if there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError("the package ray is not installed; `make extras` installs it")
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120"}
    # Ray gives what it starts less of the cores than others get, which ranks would inherit, and the clock would see.
    os.environ |= {"RAY_worker_niceness": "0"}
    # What is lost is said in one line; Ray would print twenty of a lost raylet's log behind it.
    os.environ |= {"RAY_DEDUP_LOGS_SKIP_REGEX": f"^({'|'.join(_SAID_BY_RAY)})"}
    options: dict[str, Any] = {"address": address}
    if address == "local":
        # Under /tmp, since paths of sockets are short. Nobody else may look into it.
        folder = Path(tempfile.mkdtemp(prefix="ddp-ray-", dir="/tmp"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text(secrets.token_hex(32))
        # The second has Ray bind what it opens to loopback, as it does where it knows no clusters.
        os.environ |= {"RAY_AUTH_TOKEN_PATH": str(folder / "token"), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        options |= {
            "_temp_dir": str(folder), "num_cpus": 1, "num_gpus": 0, "object_store_memory": 100_000_000,
            "include_dashboard": False,
        }  # fmt: skip
    elif not any(map(os.environ.get, ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))) and not _TOKEN.is_file():
        raise ConfigurationError(
            f"ray.address={address}: no token; allowed: the cluster's in {_TOKEN} (0600), RAY_AUTH_TOKEN_PATH or "
            "RAY_AUTH_TOKEN; `ray get-auth-token --generate` makes one"
        )
    else:
        # Ray tries so often to join, and waits so long for an answer after it has tried for twice 5 seconds: half a
        # minute in all. By itself it tries for a quarter of an hour where the head has died.
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "2")
        os.environ.setdefault("RAY_py_gcs_connect_timeout_s", "5")
    import ray

    answers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:300]
        raise ResourceError(
            f"ray.address={address}: no cluster that this machine is a node of: {said}; start one: docs/ray.md"
        ) from None
    finally:
        # A stage saves on SIGTERM; Ray would just leave.
        for number, answer in answers.items():
            signal.signal(number, answer)


def require_head(who: str, *, seconds: float) -> None:
    """Raise DistributedError if nobody listens at the cluster's head: Ray itself would go on waiting for it."""
    import ray

    address = ray.get_runtime_context().gcs_address
    if (why := _explain_refusal(*address.rsplit(":", 1), seconds=seconds)) is not None:
        raise DistributedError(
            f"{who}: the head of the Ray cluster at {address} is lost: {why}; all ranks were ended; run again, it goes "
            "on from the last checkpoint"
        )


def list_nodes() -> list[dict[str, Any]]:
    """Return the machines of the cluster that live, as Ray describes them: this one, then the others by address."""
    import ray

    here = ray.get_runtime_context().get_node_id()
    # Ray holds one that was killed for alive for a while.
    alive = [
        node for node in ray.nodes() if node["Alive"]
        and _explain_refusal(node["NodeManagerAddress"], node["NodeManagerPort"], seconds=_SECONDS_TO_OPEN) is None
    ]  # fmt: skip
    return sorted(alive, key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))


def _explain_refusal(host: str, port: str | int, *, seconds: float) -> str | None:
    """Return None if somebody listens there, else why not."""
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def carry(lines: Any, line: int, address: str) -> None:
    """Carry what the stage asks of a rank on another machine there, and its answers back, until one hangs up.

    `lines`: the actor there; `address`: the stage's socket.
    """
    import ray

    with contextlib.suppress(OSError, EOFError, ray.exceptions.RayError):
        first = ray.get(lines.accept.remote(line))
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        with Connection(connection.detach()) as stage:
            stage.send_bytes(first)
            while True:
                stage.send_bytes(ray.get(lines.exchange.remote(line, stage.recv_bytes())))
