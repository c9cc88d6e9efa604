"""Scripts of these tests: forked from one process that has imported torch, which takes longer than most of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.findings.hygiene import is_wrapped
from ddp_audit.records import Audit
from tests.auditing.forked_scripts import ForkedScripts

SCRIPTS = Path(__file__).parent / "scripts"


def ask(audit, question, cell="2proc"):
    """Return what is found of the cell, among all other questions."""
    return next(answer for answer in ask_all(audit) if answer.name == question.name).findings[cell]


@pytest.fixture(scope="session")
def forked():
    """Scripts under the observer, each on ranks of its own."""
    scripts = ForkedScripts()
    yield scripts
    scripts.close()


@pytest.fixture(scope="session")
def audit_script(forked, tmp_path_factory):
    """Return what audits a script of scripts/, or a text, in which `edits` were made, to its end.

    A script of several styles is named with one: `styles sharded`.
    """

    def run(script, edits=None, arguments="", *, cells="1,2", num_launches=1, folder=None, baseline=None):
        folder = folder or tmp_path_factory.mktemp("script")
        name, _, style = script.partition(" ")
        text = script if "\n" in script else (SCRIPTS / f"{name}.py").read_text()
        arguments = arguments if "\n" in script else f"{style} {arguments}"
        for right, wrong in (edits or {}).items():
            assert text.count(right) == 1, right
            text = text.replace(right, wrong)
        (folder / "script.py").write_text(text)
        request = parse_request({"SCRIPT": f"script.py {arguments}", "CELLS": cells, "FOLDER": str(folder)})
        audit = Audit(request)
        if baseline is not None:
            audit.add(baseline.first(audit.baseline))
        for cell, world_size in list(request.cells.items()) * num_launches:
            if cell == audit.baseline and baseline is not None:
                continue
            words = request.words_for(cell)
            launched = forked.launch(words, cell=cell, world_size=world_size, folder=folder)
            if cell == audit.baseline and is_wrapped(launched):
                alone = forked.launch(words, cell=cell, world_size=world_size, folder=folder, is_alone=True)
                launched = launched if alone.is_failed else replace(alone, is_alone=True)
            assert launched.exit_code == 0, launched.ending
            assert all(rank.is_whole for rank in launched.ranks), [rank.lines.get("broken") for rank in launched.ranks]
            audit.add(launched)
        return audit

    return run


@pytest.fixture(scope="session")
def correct(audit_script):
    """Return what audits a script of scripts/ as it is, once."""
    done = {}

    def get(name):
        if name not in done:
            done[name] = audit_script(name)
        return done[name]

    return get
