"""A Ray cluster of two machines, or of two that are one: started as docs/ray.md says, and ended with the test."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cached_property

from tests.flows.toy_project import free_port, wait_for
from tests.processes import left_of, new_mark

_RAY = ["-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]


class Cluster:
    """Two raylets; the first has the head of the cluster beside it."""

    def __init__(self, folder, *, addresses, starts, python):
        self._python, self.mark = python, new_mark()
        """In the environment of all that Ray started."""
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.environment = {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_worker_niceness": "0",
            # A cluster of this machine alone that was in this process before has set it to 0.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        }  # fmt: skip
        """What a driver needs."""
        self.address = f"{addresses[0]}:{free_port()}"
        self._addresses, self._starts, self._folder = addresses, starts, folder
        self._processes = [None, None]

    @cached_property
    def scratch(self):
        """A folder for sockets, whose paths are short."""
        return tempfile.mkdtemp(prefix="ddp-test-ray-", dir="/tmp")

    def start(self, number):
        """Start a machine's part, if it does not run."""
        if self._processes[number] is not None:
            return
        own, file = [f"--address={self.address}"], self._folder / f"ray-{number}.log"
        if number == 0:
            own = ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false", "--no-monitor"]
            own.append(f"--temp-dir={self.scratch}")
        with file.open("ab") as log:
            self._processes[number] = self._starts[number](
                [self._python, *_RAY, f"--node-ip-address={self._addresses[number]}", "--num-cpus=1", "--num-gpus=0",
                 "--object-store-memory=100000000", *own],
                env={**os.environ, **self.environment, **self.mark, "OMP_NUM_THREADS": "1",
                     "RAY_raylet_start_wait_time_s": "120"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(lambda: "--block" in file.read_text(), seconds=180, what=f"Ray has started, see {file}")

    def stop(self, number):
        """End a machine's part."""
        process = self._processes[number]
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
        self._processes[number] = None
        (self._folder / f"ray-{number}.log").unlink(missing_ok=True)

    def find(self, words):
        """Return the processes with these words in their command line, the oldest first."""
        return sorted(pid for pid, command in left_of(self.mark).items() if words in command)


@contextlib.contextmanager
def two_raylets(folder, *, addresses, starts, python=sys.executable):
    """Yield the cluster, and end all that is left of it; `python`: of Ray, and of ranks on the second machine."""
    cluster = Cluster(folder, addresses=addresses, starts=starts, python=python)
    try:
        cluster.start(0)
        cluster.start(1)
        yield cluster
    finally:
        cluster.stop(1)
        cluster.stop(0)
        for pid in left_of(cluster.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(cluster.scratch, ignore_errors=True)


def find_own_address():
    """Return the address that Ray takes for this machine's.

    Without Ray: whoever has imported it before a launcher does has told it that there are no tokens.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        try:
            # Nothing is sent.
            plug.connect(("8.8.8.8", 80))
            return plug.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())
