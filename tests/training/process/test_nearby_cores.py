"""A rank on a machine of several NUMA nodes uses the cores next to its GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import PROJECT
from training.process.nearby_cores import NearbyCores, find_nearby_cores, have_room, read_nearby_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to cores")


def _write_machine(root: Path, *, node: str, lists: list[str]) -> tuple[Path, Path]:
    """Write what the kernel says of a card on that node, and of nodes with these cores."""
    card, nodes = root / "sys/bus/pci/devices/0000:01:00.0", root / "sys/devices/system/node"
    for number, cores in enumerate(lists):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}" / "cpulist").write_text(f"{cores}\n")
    card.mkdir(parents=True)
    (card / "numa_node").write_text(f"{node}\n")
    return card, nodes


def test_what_is_next_to_a_card_are_the_allowed_cores_of_its_node(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    card, nodes = _write_machine(tmp_path, node="1", lists=["900", f"{mine[0]},901-903"])
    assert read_nearby_cores(card, nodes=nodes) == (1, {mine[0]})


@pytest.mark.parametrize(
    ("node", "lists"),
    [
        ("0", ["0-1023"]),
        ("0", ["900-901", "0-1"]),
        ("-1", ["0-1", "2-3"]),
        ("2", ["0-1", "2-3"]),
        ("0", ["", "0-1"]),
        ("0", ["none", "0-1"]),
    ],
    ids=["one node", "none allowed there", "not told", "no such node", "no cores", "no list"],
)
def test_where_nothing_is_to_be_chosen_or_told_nothing_is(node: str, lists: list[str], tmp_path: Path) -> None:
    card, nodes = _write_machine(tmp_path, node=node, lists=lists)
    assert read_nearby_cores(card, nodes=nodes) is None
    assert read_nearby_cores(tmp_path / "none", nodes=nodes) is None


@pytest.mark.parametrize(
    ("everyones", "has_room"),
    [
        ([(0, 10), (0, 10), (1, 10), (1, 10)], True),
        ([(0, 10), (0, 10), (1, 9), (1, 9)], False),
        ([(0, 14), (1, 2)], False),
        ([(0, 10), None], False),
        ([(1, 5)], True),
    ],
    ids=["enough", "one core too few for two", "few left on one node", "one not told", "one GPU"],
)
def test_all_ranks_are_bound_or_none_and_none_where_they_would_share_cores(
    everyones: list[tuple[int, int] | None], has_room: bool
) -> None:
    # Each has four threads to compute, and one for data.
    near = [one and NearbyCores(one[0], frozenset(range(one[1]))) for one in everyones]
    assert have_room(near, num_threads=5) is has_room


def test_a_rank_on_the_cpu_has_the_cores_that_it_was_given() -> None:
    assert find_nearby_cores(torch.device("cpu")) is None


_BIND = """
import os, sys, threading
from training.process.nearby_cores import bind_threads
told, seen = threading.Event(), []
def wait():
    told.wait()
    seen.append(sorted(os.sched_getaffinity(threading.get_native_id())))
waiting = threading.Thread(target=wait)
waiting.start()
bind_threads({int(sys.argv[1])})
told.set()
waiting.join()
print(sorted(os.sched_getaffinity(0)), *seen)
"""


def test_all_threads_of_the_process_are_bound() -> None:
    core = max(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _BIND, str(core)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == f"[{core}] [{core}]\n"
