"""Being asked to stop."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.toy_project import wait_for
from tests.tiny import make_config
from training.process.stop_request import StopRequest


@pytest.fixture(autouse=True)
def _handlers_put_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_sigterm_asks_for_exit_code_75_and_sigint_for_130() -> None:
    stop = StopRequest()
    stop.listen()
    assert stop.exit_code == 0
    signal.raise_signal(signal.SIGTERM)
    assert stop.exit_code == 75
    signal.raise_signal(signal.SIGINT)
    assert stop.exit_code == 130


def _exit_code_after(*signals: signal.Signals, is_listening: bool) -> int:
    pid = os.fork()
    if pid == 0:
        stop = StopRequest()
        if is_listening:
            stop.listen()
        for number in signals:
            signal.raise_signal(number)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_kills_a_rank_whose_imports_would_swallow_an_exception(
    number: signal.Signals, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(make_config(tmp_path / "work", tiny_model, slices)))
    torch = tmp_path / "first" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    torch.write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
        "try:\n    time.sleep(60)\nexcept BaseException:\n    pass\n"
    )
    path = os.pathsep.join([str(torch.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", "training", "--config", str(tmp_path / "config.json")],
        env={**os.environ, "PYTHONPATH": path},
    ) as rank:
        try:
            wait_for((tmp_path / "imported").exists, seconds=120, what="torch is imported")
            rank.send_signal(number)
            assert rank.wait(timeout=30) == -number, "the import that swallows it takes a minute"
        finally:
            rank.kill()


def test_a_second_sigint_ends_the_process_at_once() -> None:
    assert _exit_code_after(signal.SIGINT, is_listening=True) == 0
    assert _exit_code_after(signal.SIGINT, signal.SIGINT, is_listening=True) == 130


def test_before_there_is_anything_to_save_a_signal_kills_the_process() -> None:
    assert _exit_code_after(signal.SIGTERM, is_listening=False) == -signal.SIGTERM
    assert _exit_code_after(signal.SIGINT, is_listening=False) == -signal.SIGINT
