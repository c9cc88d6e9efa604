"""Which cards can be had, and what is counted on them; the C sources are given both as a header."""

import json
from typing import NamedTuple

NUM_DEVICES = 8
"""The most cards of one machine."""
CONTEXT_BYTES = 500 * 2**20
"""What a process takes of a card's memory before it has allocated anything."""


class Card(NamedTuple):
    """What a card says of itself: names and figures of a real one."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    """As CUDA sees it."""
    board_memory_mib: int
    """As NVML sees it: with what the driver keeps for itself."""
    multiprocessors: int
    threads: int
    """Per multiprocessor."""
    shared_bytes: int
    """Most shared memory that a block can ask for."""
    cache_bytes: int
    """L2."""
    clock_mhz: int
    memory_clock_mhz: int
    bus_bits: int
    power_watts: int
    """Limit."""


_CARDS = """{
"H100-80": ["NVIDIA H100 80GB HBM3", [9, 0], 85024112640, 81559, 132, 2048, 232448, 52428800, 1980, 2619, 5120, 700],
"A100-80": ["NVIDIA A100-SXM4-80GB", [8, 0], 84987740160, 81920, 108, 2048, 166912, 41943040, 1410, 1593, 5120, 400],
"H200": ["NVIDIA H200", [9, 0], 150119383040, 143771, 132, 2048, 232448, 52428800, 1980, 3201, 6144, 700],
"4090": ["NVIDIA GeForce RTX 4090", [8, 9], 25386352640, 24564, 128, 1536, 101376, 75497472, 2520, 10501, 384, 450],
"T4": ["Tesla T4", [7, 5], 15655829504, 15360, 40, 1024, 65536, 4194304, 1590, 5001, 256, 70]
}"""
CARDS = {key: Card(name, tuple(capability), *others) for key, (name, capability, *others) in json.loads(_CARDS).items()}

COUNTED = ("waits", "launches", "collectives", "plans", "device_allocations", "host_allocations")
"""Of a process: waits of the host for the device; kernels; calls of NCCL; plans of cuDNN; calls of the allocators."""
COUNTED_BY_DEVICE = ("touched", "held_bytes", "highest_bytes")
"""Of a process on each card: calls that make a context there, memory allocated now, and the most of it at any time."""
NUM_COUNTED = len(COUNTED) + NUM_DEVICES * len(COUNTED_BY_DEVICE)
"""Numbers of a process."""


def make_header():
    """Return the cards, and the places of what is counted, as C."""
    rows = ",\n".join(
        f'    {{"{key}", "{name}", {major}, {minor}, {memory}ul, {board}ul << 20, {", ".join(map(str, others))}}}'
        for key, (name, (major, minor), memory, board, *others) in CARDS.items()
    )
    names = [*COUNTED, *COUNTED_BY_DEVICE]
    first = len(COUNTED)
    places = [f"{name.upper()} = {at + max(at - first, 0) * (NUM_DEVICES - 1)}" for at, name in enumerate(names)]
    places.append(f"NUM_COUNTED = {NUM_COUNTED}")
    return (
        f"enum {{ NUM_DEVICES = {NUM_DEVICES} }};\n"
        f"static const size_t CONTEXT_BYTES = {CONTEXT_BYTES}ul;\n"
        f"enum {{ {', '.join(places)} }};\n"
        f"static const struct card CARDS[] = {{\n{rows}\n}};\n"
    )
