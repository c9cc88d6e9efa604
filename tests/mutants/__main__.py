"""`make mutants`: every mutant, and the first test that sees it; written to tests/mutants/table.md."""

import argparse
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
_SURVIVES, _NOT_RUN = "**survives**", "not run yet"
_TIMEOUT = "--timeout=180"
"""Of a test, in seconds: what waits for something that a mutant never does has seen it."""
_HEAD = "| mutant | room | died of | seconds |\n|---|---|---|---|\n"


def main():
    """Return 0 if all mutants died."""
    parser = argparse.ArgumentParser(prog="tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those with these words in their name; other rows stay")
    parser.add_argument("--missing", action="store_true", help="those without a row")
    parser.add_argument("--all-quick", action="store_true", help="where its own tests pass, all quick ones as well")
    arguments = parser.parse_args()
    rows = read_rows(TABLE.read_text(encoding="utf-8") if TABLE.exists() else "")
    chosen = [one for one in MUTANTS if arguments.only in one.patch.name]
    if arguments.missing:
        chosen = [one for one in chosen if _NOT_RUN in rows.get(one.patch.name, _NOT_RUN)]
    # What takes seconds of each run, and is nothing of the product.
    import_ahead([*HEAVY, "hypothesis.stateful", "playwright.sync_api"])
    for number, mutant in enumerate(chosen, start=1):
        started, name = time.monotonic(), mutant.patch.name
        killer = _find_killer(mutant, [str(_TESTS / file) for file in mutant.tests])
        if killer is None and arguments.all_quick:
            killer = _find_killer(mutant, ["-m", "not slow and not alone", str(_TESTS)])
        seconds = time.monotonic() - started
        rows[name] = f"| `{name}` | {mutant.room} | {killer or _SURVIVES} | {seconds:.0f} |"
        print(f"{number} of {len(chosen)}: {rows[name]}", flush=True)
        lines = [rows[key] for key in PATCHES if key in rows]
        num_dead = sum(_SURVIVES not in line and _NOT_RUN not in line for line in lines)
        TABLE.write_text(_HEAD + "\n".join(lines) + f"\n\n{num_dead} of {len(MUTANTS)} died.\n", encoding="utf-8")
    return int(any(_SURVIVES in rows[one.patch.name] for one in chosen))


def read_rows(text):
    """Return the table's rows by mutant."""
    return {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}


def _find_killer(mutant, arguments):
    """Return the first test that fails with the mutant; None if all pass."""
    keys = f"tests.mutants:{mutant.patch.name}"
    with tempfile.TemporaryDirectory() as scratch:
        failed, said = Path(scratch) / "failed", Path(scratch) / "said"
        pid = os.fork()
        if pid == 0:
            with said.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            os.environ.update(make_environment(keys) | {FAILED_FILE: str(failed)})
            install(find_patches(keys))
            os._exit(pytest.main(["-q", "-x", _TIMEOUT, "-p", "tests.list_failures", *arguments]))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        names = failed.read_text(encoding="utf-8").splitlines() if failed.exists() else []
        assert code == 0 or (code == 1 and names), f"{mutant.patch.name}: no test ran:\n{said.read_text()}"
    return names[0].removeprefix("tests/") if names else None


if __name__ == "__main__":
    sys.exit(main())
