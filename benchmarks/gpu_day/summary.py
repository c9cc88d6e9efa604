"""What is known so far, as JSON and markdown. A figure that nobody measured stays empty."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.machine.gpu_peaks import find_peak_tflops
from tasks.measuring.model_flops import find_model_shape
from training.process.files import write_json

_TIMED = ("tokens_per_second", "step_seconds", "warm_up_seconds", "block_seconds", "loss")
_HEADINGS = (
    "part", "how it ended", "s", "real tokens/s", "ms per step", "MFU", "positions per token", "allocated GiB",
    "reserved GiB", "warm-up s", "loss",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A part that is over."""

    name: str
    how: str
    """`finished`, or why not, in a line."""
    seconds: float
    """Of the whole process."""
    found: dict[str, Any]
    """What it wrote; {} if nothing."""


def write_summary(results: Path, ended: list[Ended], *, flops_per_token: float | None, is_phantom: bool) -> None:
    """Write summary.json and summary.md; on a phantom, which computes nothing, without what would be measured."""
    if is_phantom:
        ended = [_leave_out_figures(part) for part in ended]
    card = next((part.found for part in ended if part.name == "model"), {})
    write_json(
        results / "summary.json", {"is_phantom": is_phantom, "card": card, "parts": [asdict(part) for part in ended]}
    )
    peak = find_peak_tflops(card["card"], "bf16") if card and not is_phantom else None
    lines = [
        "# A day on a GPU",
        "",
        _describe(card, is_phantom=is_phantom),
        "",
        f"| {' | '.join(_HEADINGS)} |",
        f"|{' --- |' * len(_HEADINGS)}",
        *(f"| {' | '.join(_make_row(part, flops_per_token=flops_per_token, peak_tflops=peak))} |" for part in ended),
        "",
        "Rows of 512 tokens at most, 64 per step in micro-batches of 16 unless said otherwise; MFU: operations of the "
        "documents alone against the peak in bf16. Two ranks share the one card over gloo: their figures say nothing "
        "of two cards. What was not measured is empty. Each part's folder has its log and all that it found.",
    ]
    (results / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def compute_flops_per_token(prepared: Path, lengths: list[int]) -> float | None:
    """Return the operations of a real token of these rows, forward and backward; None for an unknown architecture."""
    shape, _ = find_model_shape(json.loads((prepared / "config.json").read_bytes()))
    return None if shape is None else shape.count_document_token_flops(lengths)


def _leave_out_figures(part: Ended) -> Ended:
    kept = {name: value for name, value in part.found.items() if name not in _TIMED}
    return Ended(name=part.name, how=part.how, seconds=part.seconds, found=kept)


def _describe(card: dict[str, Any], *, is_phantom: bool) -> str:
    if not card:
        return "Nothing is known of the card."
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    what = f"{card['num_cards']} x {card['card']}, {card['memory_gib']:.1f} GiB; {versions}."
    return f"{what} **A phantom, which computes nothing: neither times nor losses are given.**" if is_phantom else what


def _make_row(part: Ended, *, flops_per_token: float | None, peak_tflops: float | None) -> list[str]:
    found = part.found
    speed, step = found.get("tokens_per_second"), found.get("step_seconds")
    mfu = speed * flops_per_token / (peak_tflops * 1e12) if speed and flops_per_token and peak_tflops else None
    return [
        part.name, part.how.replace("|", "/"), f"{part.seconds:.0f}",
        _say(speed, ",.0f"), _say(step and 1e3 * step, ",.1f"), _say(mfu, ".1%"),
        _say(found.get("positions_per_token"), ".2f"), _say(found.get("allocated_gib"), ".2f"),
        _say(found.get("reserved_gib"), ".2f"), _say(found.get("warm_up_seconds"), ".1f"),
        _say(found.get("loss"), ".4f"),
    ]  # fmt: skip


def _say(value: float | None, how: str) -> str:
    return "" if value is None else format(value, how)
