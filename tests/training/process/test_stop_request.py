"""Being asked to stop."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.toy_project import wait_for
from tests.tiny import make_config
from training.process.events import StopRequest

pytestmark = pytest.mark.usefixtures("signals_as_before")


def test_sigterm_asks_for_exit_code_75_and_sigint_for_130() -> None:
    stop = StopRequest()
    stop.listen()
    assert stop.exit_code == 0
    signal.raise_signal(signal.SIGTERM)
    assert stop.exit_code == 75
    signal.raise_signal(signal.SIGINT)
    assert stop.exit_code == 130


@pytest.mark.parametrize(
    ("signals", "is_listening", "code"),
    [
        ([signal.SIGINT], True, 0),
        # A second one ends the process at once.
        ([signal.SIGINT] * 2, True, 130),
        ([signal.SIGTERM], False, -signal.SIGTERM),
        ([signal.SIGINT], False, -signal.SIGINT),
    ],
)
def test_before_there_is_anything_to_save_a_signal_kills_the_process(
    signals: list[signal.Signals], is_listening: bool, code: int
) -> None:
    pid = os.fork()
    if pid == 0:
        stop = StopRequest()
        if is_listening:
            stop.listen()
        for number in signals:
            signal.raise_signal(number)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code


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
