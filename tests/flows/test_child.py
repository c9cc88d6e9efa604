"""A child process is read to its last word and ended with everything that it started."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from flows.child import end_group, make_environment, run_child
from tasks.process.proxies import bypass_proxies_on_loopback, bypass_proxies_to
from tests.flows.toy_project import living, wait_for

# Starts a process in a session of its own, tells its pid, and ignores SIGTERM.
_STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked to end\\n"))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
while True:
    time.sleep(0.1)
"""


def _run(code):
    heard = []
    exit_code = run_child([sys.executable, "-c", code], env=dict(os.environ), on_output=heard.append)
    return exit_code, b"".join(heard).decode()


@pytest.mark.parametrize("pause", ["", "; time.sleep(0.2)"], ids=["much", "little"])
def test_a_process_out_of_reach_that_writes_for_ever_holds_nobody_up(pause, monkeypatch):
    monkeypatch.setattr("flows.child._LAST_SECONDS", 0.5)
    # The one in the middle ends at once, so that nobody knows whose child the writer is.
    flood = f"import os, time\nwhile True: os.write(1, bytes(4096)){pause}"
    middle = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {flood!r}]).pid, flush=True)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {middle!r}], start_new_session=True)"
    started = time.monotonic()
    _, heard = _run(code)
    assert time.monotonic() - started < 60
    writer = psutil.Process(int(heard.split()[0].strip("\0")))
    writer.kill()
    writer.wait(30)


def test_process_that_the_child_leaves_behind_in_its_session_is_ended():
    code, heard = _run(
        "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    )
    assert code == 0
    assert living([int(heard)]) == []


def test_tree_that_ignores_sigterm_is_killed_with_processes_in_sessions_of_their_own():
    process = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    grandchild = psutil.Process(int(process.stdout.readline()))
    end_group(process, seconds_to_save=1.0)
    assert process.stdout.read() == b"asked to end\n"
    assert process.returncode == -9
    wait_for(lambda: not living([grandchild]), seconds=30, what="the grandchild is gone")
    process.stdout.close()


@pytest.mark.parametrize(
    ("words", "is_saved"),
    [
        ("-m tasks.train --cell 1gpu", True),
        ("-m tasks.measure", False),
        ("--mode tasks.train", False),
    ],
)
def test_ranks_save_for_as_long_as_their_stage_lets_them(words, is_saved, tmp_path):
    saves = """
import signal, sys, time
def save(*_):
    time.sleep(2.5); open("saved", "w").close(); sys.exit(75)
signal.signal(signal.SIGTERM, save)
print(flush=True)
while True: time.sleep(0.1)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", saves, *words.split()], stdout=subprocess.PIPE, start_new_session=True, cwd=tmp_path
    )
    process.stdout.readline()
    end_group(process, seconds_to_save=0.5)
    process.stdout.close()
    assert (tmp_path / "saved").exists() is is_saved


def test_a_child_is_ended_before_an_exception_is_passed_on_and_has_its_time_to_save_however_often_it_is_asked(tmp_path):
    saves = """
import os, signal, sys, time
def save(*_):
    time.sleep(1); open("saved.txt", "w").close(); sys.exit(75)
signal.signal(signal.SIGTERM, save)
open("pid", "w").write(str(os.getpid()))
while True: time.sleep(0.1)
"""
    code = f"""
import os, signal, sys
from flows.child import run_child
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
run_child([sys.executable, "-c", {saves!r}], env=dict(os.environ), on_output=lambda _: None)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=tmp_path)
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), seconds=60, what="the child runs")
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    for _ in range(8):
        parent.terminate()
        time.sleep(0.1)
    _, said = parent.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said
    assert (tmp_path / "saved.txt").exists()
    assert living([child]) == []


def test_stage_is_not_told_what_opens_the_prefect_server(monkeypatch):
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"):
        monkeypatch.setenv(name, "ddp-compare:secret")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    environment = make_environment(sys.executable)
    assert "ddp-compare:secret" not in environment.values()
    assert environment["PREFECT_API_URL"] == "http://127.0.0.1:4200/api"


def test_a_stage_has_the_proxies_that_prefect_ignores_on_this_machine(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NO_PROXY": "example.org"})
    bypass_proxies_on_loopback()
    bypass_proxies_to("https://prefect.example.org/api")
    direct = "example.org,127.0.0.1,localhost,::1"
    assert (os.environ["no_proxy"], os.environ["NO_PROXY"]) == (direct, direct)
    bypass_proxies_to("http://127.0.0.1:4200/api")
    assert os.environ["no_proxy"] == "*"
    environment = make_environment(sys.executable)
    assert (environment["no_proxy"], environment["NO_PROXY"]) == (direct, direct)
