"""Which cards can be had, and what is counted on them; the C sources are given both as a header."""

from dataclasses import dataclass

NUM_DEVICES = 8
"""The most cards of one machine."""
CONTEXT_BYTES = 500 * 2**20
"""What a process takes of a card's memory before it has allocated anything."""


@dataclass(frozen=True, kw_only=True)
class Card:
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


CARDS = {
    "H100-80": Card(
        name="NVIDIA H100 80GB HBM3", capability=(9, 0), memory_bytes=85_024_112_640, board_memory_mib=81_559,
        multiprocessors=132, threads=2048, shared_bytes=232_448, cache_bytes=50 * 2**20,
        clock_mhz=1980, memory_clock_mhz=2619, bus_bits=5120, power_watts=700,
    ),
    "A100-80": Card(
        name="NVIDIA A100-SXM4-80GB", capability=(8, 0), memory_bytes=84_987_740_160, board_memory_mib=81_920,
        multiprocessors=108, threads=2048, shared_bytes=166_912, cache_bytes=40 * 2**20,
        clock_mhz=1410, memory_clock_mhz=1593, bus_bits=5120, power_watts=400,
    ),
    "H200": Card(
        name="NVIDIA H200", capability=(9, 0), memory_bytes=150_119_383_040, board_memory_mib=143_771,
        multiprocessors=132, threads=2048, shared_bytes=232_448, cache_bytes=50 * 2**20,
        clock_mhz=1980, memory_clock_mhz=3201, bus_bits=6144, power_watts=700,
    ),
    "4090": Card(
        name="NVIDIA GeForce RTX 4090", capability=(8, 9), memory_bytes=25_386_352_640, board_memory_mib=24_564,
        multiprocessors=128, threads=1536, shared_bytes=101_376, cache_bytes=72 * 2**20,
        clock_mhz=2520, memory_clock_mhz=10501, bus_bits=384, power_watts=450,
    ),
    "T4": Card(
        name="Tesla T4", capability=(7, 5), memory_bytes=15_655_829_504, board_memory_mib=15_360,
        multiprocessors=40, threads=1024, shared_bytes=65_536, cache_bytes=4 * 2**20,
        clock_mhz=1590, memory_clock_mhz=5001, bus_bits=256, power_watts=70,
    ),
}  # fmt: skip

COUNTED = ("waits", "launches", "collectives", "plans", "device_allocations", "host_allocations")
"""Of a process: waits of the host for the device; kernels; calls of NCCL; plans of cuDNN; calls of the allocators."""
COUNTED_BY_DEVICE = ("touched", "held_bytes", "highest_bytes")
"""Of a process on each card: calls that make a context there, memory allocated now, and the most of it at any time."""


def make_header():
    """Return the cards, and the places of what is counted, as C."""
    rows = ",\n".join(
        f'    {{"{key}", "{card.name}", {card.capability[0]}, {card.capability[1]}, {card.memory_bytes}ul, '
        f"{card.board_memory_mib}ul << 20, {card.multiprocessors}, {card.threads}, {card.shared_bytes}, "
        f"{card.cache_bytes}, {card.clock_mhz}, {card.memory_clock_mhz}, {card.bus_bits}, {card.power_watts}}}"
        for key, card in CARDS.items()
    )
    places = [f"{name.upper()} = {place}" for place, name in enumerate(COUNTED)]
    first = len(COUNTED)
    for turn, name in enumerate(COUNTED_BY_DEVICE):
        places.append(f"{name.upper()} = {first + turn * NUM_DEVICES}")
    places.append(f"NUM_COUNTED = {count_places()}")
    return (
        f"enum {{ NUM_DEVICES = {NUM_DEVICES} }};\n"
        f"static const size_t CONTEXT_BYTES = {CONTEXT_BYTES}ul;\n"
        f"enum {{ {', '.join(places)} }};\n"
        f"static const struct card CARDS[] = {{\n{rows}\n}};\n"
    )


def count_places():
    """Return how many numbers a process counts."""
    return len(COUNTED) + NUM_DEVICES * len(COUNTED_BY_DEVICE)
