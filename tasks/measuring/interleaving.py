"""In which order arms are measured.

Arms that run one after the other are compared on two different machines: a clock that falls, a neighbour that starts.
Blocks of all arms therefore alternate within turns of a few seconds, and whole turns are compared.
"""

from collections.abc import Iterator, Sequence
from random import Random


def generate_turns(arms: Sequence[str], *, seed: int) -> Iterator[list[str]]:
    """Yield turns without end: the arms in random order, then in the reverse of it (B A C, then C A B).

    What drifts evenly moves the one turn by as much as the next one back. Raises ValueError, at the first turn, if
    there is no arm or one stands twice.
    """
    if not arms or len(set(arms)) != len(arms):
        raise ValueError(f"arms must be given, each once; got {list(arms)}")
    random = Random(seed)
    while True:
        order = random.sample(list(arms), k=len(arms))
        yield order
        yield order[::-1]
