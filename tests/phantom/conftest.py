"""The phantom, built once; processes that a test starts find its cards."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import finished as finished
from tests.phantom.build import Phantom, build, find_missing
from tests.warm.environment import warm_environment

OnPhantom = Callable[..., Path]


@pytest.fixture(scope="session")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Phantom:
    """The library; skips by the name of what is missing to build it."""
    if missing := find_missing():
        pytest.skip(f"no phantom GPU: {missing}")
    return build(tmp_path_factory.mktemp("phantom"))


@pytest.fixture(scope="session")
def phantom_warm(phantom: Phantom) -> Iterator[Path]:
    """The folder `bin` of an environment whose processes start at once and have the phantom loaded."""
    with warm_environment(phantom.environment()) as programs:
        yield programs


@pytest.fixture
def on_phantom(
    phantom: Phantom, phantom_warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OnPhantom:  # fmt: skip
    """Return `on_phantom(card, num_cards=1)`: from then on, what this process starts finds these cards.

    It returns the folder in which each process leaves its counts.
    """

    def choose(card: str = "H100-80", *, num_cards: int = 1) -> Path:
        counts = tmp_path / "counts"
        for name, value in phantom.environment(card, num_cards=num_cards, counts=counts).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "executable", str(phantom_warm / "python"))
        return counts

    return choose
