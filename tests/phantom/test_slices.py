"""A card cut into slices (MIG), which is not there: a slice is trained on as a card with its memory and its name."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.phantom.build import Phantom
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.phantom.test_fingerprint import SLICE
from tests.tiny import make_config, make_tiny_workload
from tests.training.conftest import facts_of, start_ranks, weights_at_end

pytestmark = pytest.mark.slow

_CARD = CARDS["H100-80"]
_NAME = f"{_CARD.name} MIG 1g.10gb"
_BYTES = _CARD.memory_bytes // 8
_OTHER_SLICE = SLICE.replace("0200", "0100")


@pytest.fixture
def counts(on_phantom: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Choose the second of three slices of a card, as a user would; return the folder of what is counted."""
    monkeypatch.setenv("PHANTOM_SLICES", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{SLICE},{_OTHER_SLICE}")
    return on_phantom()


def _train(folder: Path, **changes: Any) -> tuple[int, dict[str, Any], str]:
    """Train a tiny model's cell under torchrun; return how it ended, its config and what its ranks said."""
    model, slices = make_tiny_workload("causal_lm", folder)
    config = make_config(folder / "work", model, slices, device="cuda", precision="bf16", packing=True, **changes)
    code = start_ranks(config).wait(timeout=300)
    said = (folder / "work" / "output.log").read_text()
    assert "phantom:" not in said, said[-6000:]
    return code, config, said


def _hold(library: Path, num_bytes: int) -> list[str]:
    """Return the command that takes memory, says 0 if it has been given that, and keeps it until it is told to end."""
    given = "ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t"
    asks = f"ctypes.CDLL({str(library)!r}).cudaMalloc({given}({num_bytes}))"
    return [sys.executable, "-c", f"import ctypes, sys; print({asks}, flush=True); sys.stdin.read()"]


@pytest.mark.usefixtures("counts")
def test_torch_and_nvml_see_the_slice_that_is_named_first_and_its_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.phantom.look"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["names"] == seen["board_names"] == [_NAME]
    assert seen["memory_bytes"] == [_BYTES]
    assert seen["uuids"][0].endswith("0200")
    # Of the slice's memory: half of it, all of it, and half again.
    assert seen["largest_allocation"] == [True, False, True]


@pytest.mark.parametrize(
    ("cell", "backend"),
    [({"strategy": "single"}, None), ({"strategy": "ddp", "world_size": 2, "oversubscribe": True}, "gloo")],
    ids=["1 rank", "2 ranks that share it"],
)
def test_ranks_on_a_slice_train_to_their_checkpoint_and_record_its_name(
    cell: dict[str, Any], backend: str | None, counts: Path, tmp_path: Path
) -> None:
    code, config, said = _train(tmp_path, **cell)
    assert code == 0, said[-6000:]
    assert weights_at_end(config)
    facts = facts_of(config)
    assert facts["backend"] == backend
    assert {setting["device"] for setting in facts["settings"]} == {_NAME}
    assert all(one.devices == {0} for one in read_counts(counts) if one.devices)


def test_memory_of_a_slice_ends_with_it_in_one_line_and_is_not_that_of_another(
    phantom: Phantom, counts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = _BYTES - 600 * 2**20
    with subprocess.Popen(_hold(phantom.library, most), stdin=-1, stdout=-1, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "0\n"
        code, _, said = _train(tmp_path / "full", strategy="single")
        (line,) = (line for line in said.splitlines() if line.startswith("training: "))
        assert code != 0
        assert "rank 0: out of memory: CUDA out of memory. Tried to allocate" in line
        assert f"GPU 0 has a total capacity of {_BYTES / 2**30:.2f} GiB" in line
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", _OTHER_SLICE)
        with subprocess.Popen(_hold(phantom.library, most), stdin=-1, stdout=-1, text=True) as beside:
            assert beside.stdout is not None
            assert beside.stdout.readline() == "0\n"
            beside.kill()
        held.kill()
