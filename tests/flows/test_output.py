"""A stage's output reaches file and log: whole here, bounded there, without the codes of a terminal."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from flows.child import VERBOSE
from flows.output import StageOutput
from tests.conftest import PROJECT


@pytest.fixture(autouse=True)
def _unread(capfd):
    """Keep what goes to the terminal out of the test's own output."""


def test_log_gets_a_bounded_number_of_lines_and_how_many_were_left_out(tmp_path):
    sent = []
    output = StageOutput(tmp_path / "logs" / "train.log", send=sent.append)
    for number in range(5_000):
        output.write(f"line {number}\n".encode())
    output.close()
    assert sent[:100] == [f"line {number}" for number in range(100)]
    # 100 at once and 10 a second: 5,000 lines take well under 10 s.
    assert len(sent) < 300
    left_out = [int(line.split()[0][1:]) for line in sent if "left out" in line]
    assert sum(left_out) + len(sent) - len(left_out) == 5_000
    assert (tmp_path / "logs" / "train.log").read_text().splitlines() == [f"line {number}" for number in range(5_000)]


def test_lines_are_the_same_however_the_bytes_are_cut(tmp_path):
    text = "erste Zeile: größer\r\nzweite\n\x1b[1;32mdritte\x1b[0m\n\nletzte ohne Ende".encode()
    for size in (1, 2, 3, 7, len(text)):
        sent = []
        output = StageOutput(tmp_path / f"{size}.log", send=sent.append)
        for start in range(0, len(text), size):
            output.write(text[start : start + size])
        output.close()
        assert sent == ["erste Zeile: größer", "zweite", "dritte", "letzte ohne Ende"], size


@pytest.mark.slow
def test_of_a_stage_that_dvc_runs_on_a_terminal_only_the_stages_own_words_are_shown(tmp_path, capfd, monkeypatch):
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  one:\n    cmd: echo words && mkdir out && touch out/a\n    outs: [out]\n"
    )
    monkeypatch.delenv(VERBOSE, raising=False)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "DVC_NO_ANALYTICS": "1"}
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=tmp_path, env=environment, check=True)
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "flows.child", str(os.getpid()), "repro", "--single-item", "one"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=writing, stderr=writing):
        os.close(writing)
        output = StageOutput(tmp_path / "one.log", send=lambda _: None)
        with contextlib.suppress(OSError):  # how Linux says that nobody has the other end open any more
            while chunk := os.read(reading, 65_536):
                output.write(chunk)
        output.close()
    os.close(reading)
    # The last of what DVC does is to set the colours of the terminal back.
    assert capfd.readouterr().err.replace("\x1b[0m", "").split() == ["words"]
    assert output.first_lines[0] == "Running stage 'one':", "the flow tells by this line that it was not restored"
