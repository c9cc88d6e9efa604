"""In which order arms take turns."""

import itertools
from collections import Counter

from tasks.measuring.turns import generate_turns

ARMS = ["1gpu", "2gpu", "4gpu"]


def test_each_arm_runs_once_per_turn_in_every_order_alike_and_the_next_turn_is_its_mirror_image():
    turns = list(itertools.islice(generate_turns(ARMS, seed=0), 12_000))
    assert all(after == before[::-1] for before, after in zip(turns[::2], turns[1::2], strict=True))
    counts = Counter(map(tuple, turns[::2]))
    assert counts.keys() == set(itertools.permutations(ARMS))
    assert all(850 < count < 1150 for count in counts.values())
