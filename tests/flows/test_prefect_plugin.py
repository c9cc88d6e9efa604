"""Only our own bare names are rewritten, and only where Prefect's command line wants a deployment."""

import fcntl
import re

import pytest

from flows.prefect_plugin import expand_deployment_name
from flows.server import LOCK, SERVED, read_served_environment


@pytest.mark.parametrize(
    "typed",
    [
        "prefect deployment run ddp-compare",
        "/venv/bin/prefect deployment run ddp-compare --watch",
        "prefect deployment run rebench",
        "prefect deployment schedule pause ddp-compare 12",
        "/x/prefect/__main__.py deployment delete ddp-compare",
    ],
)
def test_a_bare_name_of_ours_becomes_its_deployment(typed):
    meant = re.sub(r"(?<= )(ddp-compare|rebench)\b", r"ddp-compare/\1", typed)
    assert expand_deployment_name(typed.split())[1:] == meant.split()[1:]


@pytest.mark.parametrize(
    "typed",
    [
        "prefect deployment run",
        "prefect deployment ls ddp-compare",
        "prefect deployment run ddp-compare/ddp-compare",
        "prefect deployment run mine",
        "prefect deployment run other/ddp-compare",
        "prefect deployment run --id ddp-compare-id other ddp-compare",
        "prefect flow-run ls ddp-compare",
        "pytest deployment run ddp-compare",
    ],
)
def test_everything_else_stays_as_it_was_typed(typed):
    assert expand_deployment_name(typed.split()) == typed.split()


def test_credentials_are_used_while_serve_runs_and_not_those_that_a_killed_one_has_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_served_environment() == {}
    SERVED.parent.mkdir()
    access = {"PREFECT_API_URL": "http://127.0.0.1:4201/api", "PREFECT_API_AUTH_STRING": "ddp-compare:a=b"}
    SERVED.write_text("".join(f"{name}={value}\n" for name, value in access.items()))
    LOCK.touch()
    assert read_served_environment() == {}
    with LOCK.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_served_environment() == access
        SERVED.unlink()
        assert read_served_environment() == {}
