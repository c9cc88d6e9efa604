"""The phantom, built once; processes that a test starts find its cards."""

import sys
from importlib.util import find_spec

import pytest

from tests.integration.conftest import finished as finished
from tests.phantom.build import build, find_missing, make_environment
from tests.warm.environment import warm_environment
from tests.warm.imports import HEAVY

_MOST_SECONDS = "300"
"""That a process may have a card. The longest takes 10 of the processor, and the whole test may take 900."""
_IMPORTED = (
    "torchvision", "torch._inductor.compile_fx", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"
)  # fmt: skip
"""What some trainings of this folder import beside torch: 4 s of the processor in each rank of theirs. It asks for no
card, which a forked process could not be given any more."""


@pytest.fixture(scope="session")
def phantom(tmp_path_factory):
    """The library; skips by the name of what is missing to build it."""
    if missing := find_missing():
        pytest.skip(f"no phantom GPU: {missing}")
    return build(tmp_path_factory.mktemp("phantom"))


@pytest.fixture(scope="session")
def phantom_warm(phantom):
    """The folder `bin` of an environment whose processes start at once and have the phantom loaded."""
    # DeepSpeed asks for the kind of device when it is imported, and for no device.
    given = {**make_environment(phantom), "DS_ACCELERATOR": "cuda"}
    installed = [name for name in _IMPORTED if find_spec(name.partition(".")[0])]
    # Of few processes of this folder, and seconds of each set-up.
    heavy = [name for name in HEAVY if not name.startswith("mlflow")]
    with warm_environment(given, modules=[*heavy, *installed]) as programs:
        yield programs


@pytest.fixture
def on_phantom(phantom, phantom_warm, tmp_path, monkeypatch):
    """Return `on_phantom(card, num_cards=1)`: from then on, what this process starts finds these cards.

    It returns the folder in which each process leaves its counts.
    """

    def choose(card="H100-80", *, num_cards=1):
        (counts := tmp_path / "counts").mkdir(exist_ok=True)
        given = {"PHANTOM_SECONDS": _MOST_SECONDS, "PHANTOM_COUNTS": str(counts)}
        for name, value in (given | make_environment(phantom, card, num_cards=num_cards)).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "executable", str(phantom_warm / "python"))
        return counts

    return choose
