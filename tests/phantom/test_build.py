"""The phantom itself: held against the installed torch, and what torch sees of it."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.phantom.build import Phantom, find_unknown
from tests.phantom.cards import CARDS


def test_torch_finds_every_function_that_it_wants_in_it(phantom: Phantom) -> None:
    assert find_unknown(phantom) == set()


def test_a_function_without_an_answer_fails_and_says_its_name(
    phantom: Phantom, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ctypes.CDLL(str(phantom.library)).cudaGraphLaunch(None, None) == 801
    assert "cudaGraphLaunch was called, which tests/phantom/ has no answer to" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "num_cards"),
    [("H100-80", 8), ("4090", 1), ("T4", 2)],
)
def test_torch_and_nvml_see_the_cards(card: str, num_cards: int, on_phantom: Callable[..., Path]) -> None:
    on_phantom(card, num_cards=num_cards)
    done = subprocess.run(
        [sys.executable, "-m", "tests.phantom.look"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert "phantom:" not in done.stderr
    seen = json.loads(done.stdout)
    expected = CARDS[card]
    assert seen["names"] == seen["board_names"] == [expected.name] * num_cards
    assert seen["capabilities"] == [list(expected.capability)] * num_cards
    assert seen["memory_bytes"] == [expected.memory_bytes] * num_cards
    assert seen["board_memory_mib"] == [expected.board_memory_mib] * num_cards
    assert len(set(seen["uuids"])) == num_cards
    assert seen["has_bf16"] is (expected.capability >= (8, 0))
    assert seen["links"] == ["PCIe through one PCIe switch, peer to peer"] * (num_cards > 1)
    # A loss that happens to stand where labels stood is a number.
    assert seen["labels"] == [5, 0]
    assert seen["largest_allocation"] == [True, False, True]
