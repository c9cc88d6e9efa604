"""Two hosts on one machine: network namespaces with a cable between them, whose rate can be set."""

import os
import subprocess
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Host:
    """One of the two."""

    name: str
    """Its host name, and the end of its namespace's."""
    namespace: str
    address: str

    def popen(self, command, **options):
        """Start a command here; the process is the command's own."""
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', self.name, *command]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", "--uts", *named],
            **{"stdin": subprocess.DEVNULL, "text": True, **options},
        )


@dataclass(frozen=True)
class TwoHosts:
    """Two hosts and the cable between them."""

    alpha: Host
    beta: Host

    def shape(self, rate):
        """Let the cable carry so much both ways, such as 100mbit."""
        self._pass_through("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")

    def cut(self):
        """Let the cable carry nothing any more, of which nobody is told; `shape` mends it."""
        self._pass_through("pfifo", "limit", "0")

    def _pass_through(self, *discipline):
        for host in (self.alpha, self.beta):
            _run("tc", "-n", host.namespace, "qdisc", "replace", "dev", "cable", "root", *discipline)


@contextmanager
def two_hosts():
    """Yield them, and remove them; skips the test by name where namespaces or shaped links are not permitted."""
    mark = f"ddp{os.getpid()}x{uuid.uuid4().hex[:4]}"
    hosts = TwoHosts(*(Host(name, f"{mark}-{name}", f"10.77.0.{end}") for end, name in ((1, "alpha"), (2, "beta"))))
    with ExitStack() as stack:
        try:
            for host in (hosts.alpha, hosts.beta):
                _run("ip", "netns", "add", host.namespace)
                stack.callback(_run, "ip", "netns", "delete", host.namespace)
            # Made inside: no interface of this machine itself is ever touched.
            _run(
                "ip", "-n", hosts.alpha.namespace, "link", "add", "cable", "type", "veth",
                "peer", "name", "cable", "netns", hosts.beta.namespace,
            )  # fmt: skip
            for host in (hosts.alpha, hosts.beta):
                _run("ip", "-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _run("ip", "-n", host.namespace, "link", "set", device, "up")
            hosts.shape("1gbit")
        except (OSError, subprocess.CalledProcessError) as error:
            said = str(getattr(error, "stderr", None) or error).strip()
            pytest.skip(f"no two hosts can be made of network namespaces here: {said}")
        yield hosts


def _run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)
