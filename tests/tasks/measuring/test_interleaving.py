"""In which order arms take turns."""

import itertools
from collections import Counter

from tasks.measuring.turns import generate_turns

ARMS = ["1gpu", "2gpu", "4gpu"]


def test_each_arm_runs_once_per_turn_and_the_next_turn_is_its_mirror_image():
    turns = list(itertools.islice(generate_turns(ARMS, seed=0), 100))
    assert all(sorted(turn) == sorted(ARMS) for turn in turns)
    assert all(after == before[::-1] for before, after in zip(turns[::2], turns[1::2], strict=True))


def test_every_order_is_as_likely():
    counts = Counter(map(tuple, itertools.islice(generate_turns(ARMS, seed=0), 0, 12_000, 2)))
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())
