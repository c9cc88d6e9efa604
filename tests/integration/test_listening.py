"""A whole comparison, measurement and training under torchrun included, is reached by nobody from outside."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from tasks.process.lock import make_lock_name
from tests.flows.toy_project import wait_for
from tests.listeners import Listeners
from tests.processes import new_mark
from tests.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_socket_of_every_interface_is_told_from_one_of_loopback() -> None:
    mark, hosts = new_mark(), ["127.0.0.1", "0.0.0.0"]
    if socket.has_dualstack_ipv6():
        hosts += ["::1", "::"]
    listen = (
        "import socket, sys\n"
        "families = [socket.AF_INET6 if ':' in host else socket.AF_INET for host in sys.argv[1:]]\n"
        "opened = [socket.create_server((host, 0), family=one) for host, one in zip(sys.argv[1:], families)]\n"
        "print(*(one.getsockname()[1] for one in opened), flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", listen, *hosts], env=os.environ | mark, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process, Listeners(mark) as listeners:  # fmt: skip
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        wait_for(lambda: len(listeners.found) == len(ports), seconds=60, what="they are seen")
        process.communicate()
    assert {(one.address, one.is_open) for one in listeners.found} == {
        (f"{host}:{port}", host in ("0.0.0.0", "::")) for host, port in zip(hosts, ports, strict=True)
    }


def test_a_whole_comparison_listens_on_loopback_and_on_sockets_of_its_owner_alone(finished: Workspace) -> None:
    found = json.loads((finished.folder.parent / "listeners.json").read_bytes())
    owners = [listener["owner"] for listener in found]
    assert any("-m training " in owner and "--serve" in owner for owner in owners)
    assert any("-m training " in owner and "--serve" not in owner for owner in owners)
    assert any("tasks.measure" in owner for owner in owners)
    # The machine's lock is a name that anybody may knock at: it reads nothing, and answers its own user alone.
    is_lock = re.compile(
        rf"@{re.escape(make_lock_name()[1:].partition('/')[0])}/[0-9a-f]{{16}}/{os.geteuid()}"
    ).fullmatch
    assert [one for one in found if one["is_open"] and not is_lock(one["address"])] == []
