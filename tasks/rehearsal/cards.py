"""Cards by the figures that a rehearsal needs, each with its source; and cards that somebody describes."""

import re
from dataclasses import dataclass

from tasks.machine.gpu_peaks import find_peak_tflops
from tasks.params.choices import suggest
from tasks.process.failure import ConfigurationError

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Card:
    """One GPU."""

    name: str
    """As NVML names it; for one that was described, the description."""
    memory_gib: float
    """As CUDA sees it."""
    memory_source: str
    gb_per_second: float
    """Of its memory."""
    bandwidth_source: str
    link_gb_per_second: float | None
    """To another card of the machine, one direction; None: not known."""
    link_source: str
    capability: tuple[int, int]
    """As CUDA counts it; (8, 0) is Ampere."""
    tflops: float | None = None
    """Of a card that was described, in 16 bit; others: tasks/machine/gpu_peaks.py."""

    def find_tflops(self, precision: str) -> float | None:
        """Return the dense peak at this precision; None where it is not known or there is none."""
        if self.tflops is not None:
            return None if precision == "fp32" else self.tflops
        return find_peak_tflops(self.name, precision)


_PCIE_3, _PCIE_4 = "PCIe 3.0 x16, one direction", "PCIe 4.0 x16, one direction"
_TOLD = "what torch says is the total capacity, in public reports of out-of-memory errors"

CARDS = {
    "A100-40": Card(
        name="NVIDIA A100-SXM4-40GB", memory_gib=39.50, memory_source=_TOLD, gb_per_second=1555,
        bandwidth_source="NVIDIA A100 data sheet, 2021", link_gb_per_second=300,
        link_source="NVLink 3, half of 600 GB/s, NVIDIA A100 data sheet, 2021", capability=(8, 0),
    ),
    "A100-80": Card(
        name="NVIDIA A100-SXM4-80GB", memory_gib=79.15, memory_source=_TOLD, gb_per_second=2039,
        bandwidth_source="NVIDIA A100 data sheet, 2021", link_gb_per_second=300,
        link_source="NVLink 3, half of 600 GB/s, NVIDIA A100 data sheet, 2021", capability=(8, 0),
    ),
    "H100-80": Card(
        name="NVIDIA H100 80GB HBM3", memory_gib=79.19, memory_source=_TOLD, gb_per_second=3350,
        bandwidth_source="NVIDIA H100 data sheet", link_gb_per_second=450,
        link_source="NVLink 4, half of 900 GB/s, NVIDIA H100 data sheet", capability=(9, 0),
    ),
    "H200": Card(
        name="NVIDIA H200", memory_gib=139.80, memory_source=_TOLD, gb_per_second=4800,
        bandwidth_source="NVIDIA H200 data sheet, 2024", link_gb_per_second=450,
        link_source="NVLink 4, half of 900 GB/s, NVIDIA H200 data sheet, 2024", capability=(9, 0),
    ),
    "B200": Card(
        name="NVIDIA B200", memory_gib=178.35, memory_source="device query in pytorch/ao pull request 4002",
        gb_per_second=7672, bandwidth_source="clock x bus of a device query in pytorch/ao pull request 4002",
        link_gb_per_second=900, link_source="NVLink 5, half of 1,800 GB/s, NVIDIA HGX B200 data sheet, 2025",
        capability=(10, 0),
    ),
    "A10G": Card(
        name="NVIDIA A10G", memory_gib=22.06, memory_source="total_memory of torch's device properties, in public logs",
        gb_per_second=600, bandwidth_source="NVIDIA A10G data sheet, 2021", link_gb_per_second=32,
        link_source=_PCIE_4, capability=(8, 6),
    ),
    "L4": Card(
        name="NVIDIA L4", memory_gib=22.0, memory_source="24 GB less what error correction and driver keep, rounded "
        "down", gb_per_second=300, bandwidth_source="NVIDIA L4 data sheet, 2023", link_gb_per_second=32,
        link_source=_PCIE_4, capability=(8, 9),
    ),
    "L40S": Card(
        name="NVIDIA L40S", memory_gib=44.39, memory_source=_TOLD, gb_per_second=864,
        bandwidth_source="NVIDIA L40S data sheet, 2023", link_gb_per_second=32, link_source=_PCIE_4, capability=(8, 9),
    ),
    "4090": Card(
        name="NVIDIA GeForce RTX 4090", memory_gib=23.64, memory_source=_TOLD, gb_per_second=1008,
        bandwidth_source="NVIDIA Ada whitepaper, v2", link_gb_per_second=32, link_source=_PCIE_4, capability=(8, 9),
    ),
    "T4": Card(
        name="Tesla T4", memory_gib=14.58, memory_source=_TOLD, gb_per_second=320,
        bandwidth_source="NVIDIA T4 data sheet, 2019", link_gb_per_second=16, link_source=_PCIE_3, capability=(7, 5),
    ),
}  # fmt: skip
"""Name on the command line -> card."""

_DESCRIBED = re.compile(
    r"(?P<memory>[\d.]+)\s*GB\s*,\s*(?P<bandwidth>[\d.]+)\s*GB/s\s*,\s*(?P<tflops>[\d.]+)\s*TFLOP/s"
    r"(\s*,\s*link\s*(?P<link>[\d.]+)\s*GB/s)?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(?P<number>\d+)\s*x\s+?(?P<card>\S.*)", re.IGNORECASE)
_SHARE_TO_BE_HAD = 0.93
"""Of the memory that a card is sold with; of those above 0.90 to 0.99."""


def parse_gpu(text: str) -> tuple[int, Card]:
    """Return how many cards, and which, `2x H100-80` or `4x 48GB,864GB/s,181TFLOP/s` means.

    Raises ConfigurationError for anything else.
    """
    numbered = _NUMBER.fullmatch(text.strip())
    number, name = (int(numbered["number"]), numbered["card"]) if numbered else (1, text.strip())
    if number >= 1:
        for known, card in CARDS.items():
            if known.lower() == name.lower():
                return number, card
        told = _DESCRIBED.fullmatch(name)
        described = None if told is None else _describe_card(told)
        if described is not None:
            return number, described
    raise ConfigurationError(
        f"GPU: got {text[:80]!r}{suggest(name, [*CARDS])}; allowed: {', '.join(CARDS)}, or memory, bandwidth and "
        "16-bit speed such as 48GB,864GB/s,181TFLOP/s and perhaps ,link 32GB/s; the number before it: 2x H100-80"
    )


def _describe_card(told: re.Match[str]) -> Card | None:
    """Return the card; None if a figure is no number above 0."""
    try:
        figures = {name: float(value) for name, value in told.groupdict().items() if value is not None}
    except ValueError:
        return None
    if not all(figures.values()):
        return None
    return Card(
        name=told.group(),
        memory_gib=_SHARE_TO_BE_HAD * figures["memory"] * 1e9 / GIB,
        memory_source=f"{_SHARE_TO_BE_HAD:.0%} of what was given",
        gb_per_second=figures["bandwidth"],
        bandwidth_source="given",
        link_gb_per_second=figures.get("link"),
        link_source="given" if "link" in figures else "not given",
        capability=(8, 0),
        tflops=figures["tflops"],
    )
