"""`make mutants`: every mutant, and the first test that sees it; written to tests/mutants/table.md.

`python -m tests.mutants WORDS`: those with the words in their name; other rows stay.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.list_failures import FAILED_FILE
from tests.mutants import MUTANTS, PATCHES
from tests.mutants.patching import find_patches, install, make_environment
from tests.warm.imports import HEAVY, import_ahead

TABLE = Path(__file__).with_name("table.md")
_TESTS = Path(__file__).resolve().parents[1]
_SURVIVES = "**survives**"
_TIMEOUT = "--timeout=180"
"""Of a test, in seconds: what waits for something that a mutant never does has seen it."""
_HEAD = "| mutant | room | died of | seconds |\n|---|---|---|---|\n"


def main():
    """Return 0 if all mutants died."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    chosen = [pair for pair in MUTANTS if any(words in pair[0].name for words in sys.argv[1:] or [""])]
    # What takes seconds of each run, and is nothing of the product.
    import_ahead([*HEAVY, "hypothesis.stateful", "playwright.sync_api"])
    for number, (patch, tests) in enumerate(chosen, start=1):
        started, room = time.monotonic(), "/".join(patch.module.split(".")[:2])
        died_of = _find_killer(patch, [str(_TESTS / file) for file in tests]) or _SURVIVES
        rows[patch.name] = f"| `{patch.name}` | {room} | {died_of} | {time.monotonic() - started:.0f} |"
        print(f"{number} of {len(chosen)}: {rows[patch.name]}", flush=True)
        lines = [rows[key] for key in PATCHES if key in rows]
        num_dead = sum(_SURVIVES not in line for line in lines)
        TABLE.write_text(_HEAD + "\n".join(lines) + f"\n\n{num_dead} of {len(MUTANTS)} died.\n", encoding="utf-8")
    return int(any(_SURVIVES in rows[patch.name] for patch, _ in chosen))


def _find_killer(patch, tests):
    """Return the first test that fails with the mutant; None if all pass."""
    keys = f"tests.mutants:{patch.name}"
    with tempfile.TemporaryDirectory() as scratch:
        failed, said = Path(scratch) / "failed", Path(scratch) / "said"
        pid = os.fork()
        if pid == 0:
            with said.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.environ.update(make_environment(keys) | {FAILED_FILE: str(failed)})
            install(find_patches(keys))
            os._exit(pytest.main(["-q", "-x", _TIMEOUT, "-p", "tests.list_failures", *tests]))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        names = failed.read_text(encoding="utf-8").splitlines() if failed.exists() else []
        assert code == 0 or (code == 1 and names), f"{patch.name}: no test ran:\n{said.read_text()}"
    return names[0].removeprefix("tests/") if names else None


if __name__ == "__main__":
    sys.exit(main())
