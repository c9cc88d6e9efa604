"""Cards by the figures that a rehearsal needs, each with its source; and cards that somebody describes."""

import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.machine.gpu_facts import find_peak_tflops
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
    """Of a card that was described, in 16 bit; others: tasks/machine/gpu_peaks.toml."""

    def find_tflops(self, precision: str) -> float | None:
        """Return the dense peak at this precision; None where it is not known or there is none."""
        if self.tflops is not None:
            return None if precision == "fp32" else self.tflops
        return find_peak_tflops(self.name, precision)


CARDS = {
    name: Card(**{**card, "capability": tuple(card["capability"])})
    for name, card in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
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
        with suppress(ValueError, AttributeError):  # a figure is no number, or there are none
            given = _DESCRIBED.fullmatch(name).groupdict()  # type: ignore[union-attr]
            figures = {key: float(value) for key, value in given.items() if value is not None}
            if all(figures.values()):
                return number, Card(
                    name=name,
                    memory_gib=_SHARE_TO_BE_HAD * figures["memory"] * 1e9 / GIB,
                    memory_source=f"{_SHARE_TO_BE_HAD:.0%} of what was given",
                    gb_per_second=figures["bandwidth"],
                    bandwidth_source="given",
                    link_gb_per_second=figures.get("link"),
                    link_source="given" if "link" in figures else "not given",
                    tflops=figures["tflops"],
                    capability=(8, 0),
                )
    raise ConfigurationError(
        f"GPU: got {text[:80]!r}{suggest(name, [*CARDS])}; allowed: {', '.join(CARDS)}, or memory, bandwidth and "
        "16-bit speed such as 48GB,864GB/s,181TFLOP/s and perhaps ,link 32GB/s; the number before it: 2x H100-80"
    )
