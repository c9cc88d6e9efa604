"""The emulated devices on which predictions are tried: some to calibrate the intervals by, others to judge them by."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.emulator.device import EmulatedDevice


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One device and the work of a step on it."""

    name: str
    """What is special about it."""
    device: EmulatedDevice
    """Without contention, which needs a folder."""
    num_micro_batches: int = 4
    """Of a whole step."""
    contention: float = 0.0
    """The device's, once it has a folder."""


def _plain(name: str, *, num_micro_batches: int = 4, contention: float = 0.0, **changes: float | int) -> Configuration:
    """Return a device of 4 layers of 4.5 ms and 32 MiB each, over a link of 8 GiB/s, with changes."""
    figures: dict[str, float | int] = {
        "num_layers": 4, "forward_ms": 1.5, "backward_ms": 3.0, "gradient_mib_per_layer": 32.0,
        "link_latency_ms": 0.3, "link_gib_per_second": 8.0, "optimizer_ms": 2.0, "fixed_ms": 1.0,
        **changes,
    }  # fmt: skip
    device = EmulatedDevice(**figures)  # type: ignore[arg-type]
    return Configuration(name=name, device=device, num_micro_batches=num_micro_batches, contention=contention)


FITTING: Sequence[Configuration] = (
    _plain("plain"),
    _plain("slow link", link_gib_per_second=2.0),
    _plain("slow link, 8 micro-batches", link_gib_per_second=1.5, num_micro_batches=8),
    _plain("latency", gradient_mib_per_layer=26.0, link_latency_ms=2.5, num_layers=6, forward_ms=1.0, backward_ms=2.0),
    _plain("contention", contention=0.15),
    _plain("wrapper and copy", wrapper_ms=1.0, copy_ms=1.5),
    _plain("optimizer and fixed", optimizer_ms=10.0, fixed_ms=6.0),
    _plain("jitter and straggler", jitter=0.08, straggler_ms=4.0),
)
"""The intervals' share of the model's own error comes from these."""

VALIDATION: Sequence[Configuration] = (
    _plain("fast link, 8 micro-batches", link_gib_per_second=30.0, num_micro_batches=8),
    _plain("very slow link", link_gib_per_second=1.2),
    _plain(
        "slow link, 12 micro-batches",
        forward_ms=1.0, backward_ms=2.0, link_gib_per_second=1.2, num_micro_batches=12,
    ),
    _plain(
        "several layers per bucket",
        num_layers=8, forward_ms=0.8, backward_ms=1.6, gradient_mib_per_layer=10.0, link_gib_per_second=2.5,
    ),
    _plain("many thin layers", num_layers=12, forward_ms=0.5, backward_ms=1.0, gradient_mib_per_layer=26.0),
    _plain("high latency", link_latency_ms=5.0, link_gib_per_second=10.0),
    _plain("strong contention", contention=0.3, link_gib_per_second=4.0),
    _plain("wrapper and copy of 5 layers", num_layers=5, wrapper_ms=2.5, copy_ms=3.0),
    _plain("optimizer and fixed, slow link", optimizer_ms=16.0, fixed_ms=8.0, link_gib_per_second=2.5),
    _plain("straggler", straggler_ms=8.0),
    _plain("jitter, slow link", jitter=0.2, link_gib_per_second=3.0),
    _plain(
        "everything", contention=0.1, wrapper_ms=0.5, copy_ms=0.5, jitter=0.05, straggler_ms=2.0,
        link_gib_per_second=3.0, num_micro_batches=8,
    ),
)  # fmt: skip
"""None of these is used to calibrate."""
