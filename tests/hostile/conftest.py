"""What the hostile tests share: the command that checks params files, and a canary that nothing may touch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MAX_SECONDS = 8.0
"""Here it takes a second at most; what is not refused at once takes minutes, or for ever."""


@dataclass(frozen=True)
class Ending:
    """How the check of a params file ended."""

    code: int
    said: str
    heavy: list[str]
    """Modules that were imported and take seconds."""
    seconds: float
    """Of CPU: other work on the machine is not the command's."""


class ParamsCommand:
    """`make params` on one content after another, each in a folder and a process of its own."""

    def __init__(self, scratch: Path, *, project: Path) -> None:
        self._scratch = scratch
        self._number = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.params_server"],
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def check(self, content: bytes) -> Ending:
        """Check the content; fail the test if anything was written, imported or printed that should not be."""
        self._number += 1
        folder = self._scratch / str(self._number)
        folder.mkdir()
        file = folder / "params.yaml"
        file.write_bytes(content)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        ending = Ending(**json.loads(self._process.stdout.readline()))
        assert [path.name for path in folder.iterdir()] == ["params.yaml"]
        assert file.read_bytes() == content
        assert ending.heavy == []
        assert ending.seconds < MAX_SECONDS
        assert ending.code in (0, 2), ending.said
        if ending.code == 2:
            self._check_line(ending.said)
        else:
            assert ending.said == ""
        return ending

    @staticmethod
    def _check_line(said: str) -> None:
        assert said.startswith(("params: params.yaml: ", "ddp-compare: params.yaml: "))
        assert said.count("\n") == 1
        assert said.endswith("\n")
        assert said[:-1].isprintable()
        assert len(said) < 700
        assert "Traceback" not in said
        assert any(word in said for word in ("allowed: ", "must ", "missing", "; use ", "; put ")), said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[ParamsCommand]:
    """The command that checks params files."""
    running = ParamsCommand(tmp_path_factory.mktemp("params"), project=project)
    yield running
    running.close()
