"""Scripts of these tests: ranks forked from a process that has imported torch, which takes longer than most."""

import functools
from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.records import Audit, Launched, read_rank
from tests.training.forked_ranks import ForkedRanks, last_words

SCRIPTS = Path(__file__).parent / "scripts"
_RANK = "tests.auditing.observed_rank"
_AHEAD = {
    "accelerated": ["accelerate"], "lightning_module": ["pytorch_lightning"], "trainer": ["transformers.trainer"],
    "styles": ["torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor.parallel"],
}  # fmt: skip
"""What takes longer to import than such a script to run."""
_ALONE = ("accelerated", "regression", "trainer")
"""Wrap their model wherever torchrun starts them: their baseline is started by python, as an audit does then."""


def ask(audit, question, cell="2proc"):
    """Return what is found of the cell, among all other questions."""
    return next(answer for answer in ask_all(audit) if answer.name == question.name).findings[cell]


@pytest.fixture(scope="session")
def launch(warm):
    """Return what runs a script in `folder` to its end on so many ranks, under the observer; what it left is below."""
    ranks = ForkedRanks(warm / "python")

    def run(words, folder, cell="1proc", world_size=1, *, is_alone=False, ahead=()):
        work = folder / f"{cell}-{len(list(folder.glob(cell + '-*')))}"
        config = {
            "words": words, "folder": str(folder), "is_alone": is_alone, "work_dir": str(work),
            "world_size": world_size, "ahead": [_RANK, "ddp_audit.observer.computed", *ahead],
        }  # fmt: skip
        codes = ranks.launch(config, entry=_RANK)
        records = [read_rank(work / f"rank-{rank}.jsonl", rank) for rank in range(world_size)]
        ending = last_words(config) if any(codes) else ""
        return Launched(cell, work, records, max(codes, key=abs), ending, is_alone=is_alone)

    yield run
    ranks.close()


@pytest.fixture(scope="session")
def audit_script(launch, tmp_path_factory):
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
        for cell, world_size in [*request.cells.items()][baseline is not None :] * num_launches:
            launched = launch(
                request.words_for(cell), folder, cell, world_size,
                is_alone=name in _ALONE and cell == audit.baseline, ahead=_AHEAD.get(name, ()),
            )  # fmt: skip
            assert launched.exit_code == 0, launched.ending
            assert all(rank.is_whole for rank in launched.ranks), [rank.lines.get("broken") for rank in launched.ranks]
            audit.add(launched)
        return audit

    return run


@pytest.fixture(scope="session")
def correct(audit_script):
    """Return what audits a script of scripts/ as it is, once."""
    return functools.cache(audit_script)
