"""What is known so far, as text, and the one file that comes back. A figure that nobody measured stays empty."""

import json
import tarfile
from dataclasses import asdict, dataclass, field
from typing import Any

from training.process.files import replace_file, write_json

_TIMED = ("tokens_per_second", "mfu", "step_ms", "block_seconds", "warm_up_seconds", "loss")
_HEADINGS = (
    "setting", "real tokens/s", "rehearsed", "MFU", "ms per step", "host ms", "positions per token", "allocated GiB",
    "rehearsed", "reserved GiB", "warm-up s", "loss",
)  # fmt: skip
_MOST_LOG_BYTES = 200_000
RUNNING = "still running"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A part that is over, or the one that runs."""

    name: str
    how: str
    """`finished`, or why not, in a line."""
    seconds: float = 0.0
    """Of the whole process."""
    results: dict[str, Any] = field(default_factory=dict)
    """What it wrote; {} if nothing."""


def format_summary(ended, rehearsed, *, is_phantom):
    """Return it as markdown.

    `rehearsed`: card -> setting -> what was foretold. Of a phantom, which computes nothing, neither times nor losses.
    """
    card = next((part.results for part in ended if part.name == "card"), {})
    foretold = rehearsed.get(card.get("card", ""), {})
    settings = {name: item for part in ended for name, item in part.results.get("settings", {}).items()}
    if is_phantom:
        settings = {
            name: {key: value for key, value in setting.items() if key not in _TIMED}
            for name, setting in settings.items()
        }
    parts = [f"- {part.name}: {part.how} ({part.seconds:.0f} s)" for part in ended]
    lines = [] if is_phantom else [f"- {line}" for part in ended for line in part.results.get("lines", [])]
    return "\n".join(
        [
            "# A day on a GPU", "", _describe(card, is_phantom=is_phantom), "", *parts, "",
            f"| {' | '.join(_HEADINGS)} |",
            f"|{' --- |' * len(_HEADINGS)}",
            *(
                f"| {' | '.join(_make_row(name, setting, foretold.get(name, {})))} |"
                for name, setting in settings.items()
            ),
            "", *lines, *([""] if lines else []),
            "Steps of 64 rows of 512 tokens at most; MFU: operations of the documents alone against the peak of the "
            "precision. Host ms: a step whose rows are cut to 8 tokens. Rehearsed: modelled without a card.",
        ]
    )  # fmt: skip


def write_archive(archive, results, ended, summary):
    """Write the summary, and of every part its log's end and what it found, as one file that is whole or the last."""
    write_json(results / "summary.json", [asdict(part) for part in ended])
    (results / "summary.md").write_text(summary + "\n", encoding="utf-8")
    for log in results.glob("*/log.txt"):
        text = log.read_bytes()
        (log.parent / "log-end.txt").write_bytes(text[-_MOST_LOG_BYTES:])
    with replace_file(archive) as temporary, tarfile.open(temporary, "w:gz") as packed:
        for file in sorted(results.rglob("*")):
            if file.is_file() and file.name not in ("log.txt",) and not file.name.startswith("."):
                packed.add(file, arcname=f"gpu-day/{file.relative_to(results)}")


def read_rehearsed(prepared):
    """Return what the kit foretold; {} where it did not."""
    path = prepared / "rehearsed.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _describe(card, *, is_phantom):
    if not card:
        return "Nothing is known of the card."
    versions = ", ".join(f"{name} {version}" for name, version in card["versions"].items())
    what = f"{card['num_cards']} x {card['card']}, {card['memory_gib']:.1f} GiB; {versions}."
    if is_phantom:
        return f"{what} **A phantom, which computes nothing: neither times nor losses are given.**"
    copied, product = card["copied_tb_per_second"], card["product_tflops"]
    return f"{what} Copies {copied:.2f} TB/s (read and written), a product of 8192 in bf16 {product:.0f} TFLOP/s."


def _make_row(name, results, foretold):
    speeds = [_format(foretold.get(key), ",.0f") for key in ("lowest_tokens_per_second", "highest_tokens_per_second")]
    return [
        name if "failed" not in results else f"{name}: {results['failed'].replace('|', '/')}",
        _format(results.get("tokens_per_second"), ",.0f"), " to ".join(speeds) if all(speeds) else "",
        _format(results.get("mfu"), ".1%"), _format(results.get("step_ms"), ",.1f"),
        _format(results.get("host_ms"), ",.1f"),
        _format(results.get("positions_per_token"), ".2f"), _format(results.get("allocated_gib"), ".2f"),
        _format(foretold.get("peak_gib"), ".2f"), _format(results.get("reserved_gib"), ".2f"),
        _format(results.get("warm_up_seconds"), ".1f"), _format(results.get("loss"), ".4f"),
    ]  # fmt: skip


def _format(value, how):
    return "" if value is None else format(value, how)
