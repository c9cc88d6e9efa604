"""The phantom itself: held against the installed torch, and what torch sees of it."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.phantom.build import Phantom, find_unknown, list_new
from tests.phantom.cards import CARDS
from tests.phantom.symbols import KERNELS, SILENT, list_defined


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=PROJECT, capture_output=True, text=True, check=True)


def test_torch_finds_every_function_that_it_wants_in_it(phantom: Phantom) -> None:
    assert find_unknown(phantom) == set()


def test_torch_wants_no_function_that_nobody_has_looked_at(phantom: Phantom) -> None:
    new = sorted(list_new(phantom))
    assert not new, (
        f"new in the installed torch: {', '.join(new)}. Each needs an answer in tests/phantom/*.c, a place in "
        "lists/kernels.txt or silent.txt, or none if no training calls it: then `python -m tests.phantom --known`"
    )


def test_what_does_nothing_is_answered_nowhere_else(phantom: Phantom) -> None:
    answered = list_defined(*(phantom.library.parent / f"{path.stem}.o" for path in Path(__file__).parent.glob("*.c")))
    assert not answered & (KERNELS | SILENT)
    assert not KERNELS & SILENT


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
    done = _run("-m", "tests.phantom.look")
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


@pytest.mark.slow
def test_its_memory_can_be_had_in_pieces_too(
    on_phantom: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    python = sys.executable
    on_phantom("4090")
    # The allocator looks at it when torch is loaded.
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    done = _run("-m", "tests.phantom.look")
    assert "phantom:" not in done.stderr
    assert json.loads(done.stdout)["largest_allocation"] == [True, False, True]


@pytest.mark.slow
def test_small_numbers_go_from_rank_to_rank_and_calls_that_differ_end_both(
    on_phantom: Callable[..., Path], tmp_path: Path
) -> None:
    on_phantom(num_cards=2)
    done = _run("-m", "tests.phantom.apart", str(tmp_path))
    found = json.loads(done.stdout)
    # What lies where a bucket of gradients was is as a rule another tensor's by then, on this rank and not on that one.
    assert found.pop("of a bucket") == 0
    assert found == {"summed": [3.0, 1.0], "gathered": [10.0, 11.0], "largest": 1, "sent": 14, "ends": [-6, -6]}
    assert "rank 1 calls all-reduce of 4 (type 7, op 0, root 0), rank 0 all-reduce of 3 (type 7" in done.stderr


def test_a_cards_memory_is_that_of_all_processes_on_it_until_they_end(
    phantom: Phantom, on_phantom: Callable[..., Path]
) -> None:
    on_phantom("T4")
    takes = f"import ctypes; print(ctypes.CDLL({str(phantom.library)!r}).cudaMalloc(ctypes.byref(ctypes.c_void_p()), "
    takes += "ctypes.c_size_t(10 * 2**30)), flush=True)"

    def take() -> str:
        return subprocess.run([sys.executable, "-c", takes], capture_output=True, text=True, check=True).stdout

    with subprocess.Popen([sys.executable, "-c", f"{takes}; input()"], stdin=-1, stdout=-1, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "0\n"
        assert take() == "2\n"
        first.kill()
    assert take() == "0\n"


def test_a_process_that_never_ends_is_ended_and_says_why(
    phantom: Phantom, on_phantom: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_phantom()
    monkeypatch.setenv("PHANTOM_SECONDS", "1")
    waits = f"import ctypes, time; ctypes.CDLL({str(phantom.library)!r}).cudaSetDevice(0); time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", waits], capture_output=True, text=True, check=False)
    assert done.returncode == 124
    assert done.stderr == "phantom: this process has had a card for longer than PHANTOM_SECONDS\n"


@pytest.mark.slow
def test_a_number_that_nothing_has_written_is_0_and_a_flag_true_whatever_lies_there(
    on_phantom: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_phantom()
    for said, flag in ((None, True), ("0", False)):
        if said is not None:
            monkeypatch.setenv("PHANTOM_LONE_NUMBERS", said)
        assert json.loads(_run("-m", "tests.phantom.lone").stdout) == {
            "left by others": [0, 0.0, 0.0, flag], "arrived": [7, -2.5, True, False]
        }  # fmt: skip


def test_a_card_that_does_not_exist_is_refused_by_name(phantom: Phantom) -> None:
    with pytest.raises(
        ValueError, match="card 'B300'; allowed: H100-80, A100-80, A100-40, H200, A10G, 4090, T4, V100-16"
    ):
        phantom.environment("B300")
