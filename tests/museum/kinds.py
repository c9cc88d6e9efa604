"""What the museum was shown on: workloads and precisions, each a row of a table in docs/museum.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.marked_table import replace_rows

BEGIN = "<!-- written by make museum: begin -->"
_HEADINGS = ("trained", "mutants caught by any gate", "on", "without a defect", "alarms in those", "on")
_NAMES = {
    "causal_lm": "language model",
    "instruction": "instruction tuning",
    "sequence_classification": "text classifier",
    "image_classification": "ResNet18",
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is trained, and in which precision forward and backward are computed."""

    workload: str
    precision: str

    def __str__(self) -> str:
        return f"{_NAMES[self.workload]}, {self.precision}"


KINDS = [Kind(workload=name, precision=precision) for name in _NAMES for precision in ("fp32", "bf16", "fp16")]
"""In the order of the table; the first is the one of which all is told."""


def with_kind(
    text: str,
    kind: Kind,
    *,
    caught: str | None,
    clean: tuple[int, int] | None,
    machine: Mapping[str, Any],
    date: str,
) -> str:  # fmt: skip
    """Return the document with what was shown of a kind in its table; what is None stays as an earlier run left it.

    `caught`: "73 of 73" mutants; `clean`: how many comparisons without a defect were run, and alarms in those.
    """
    note = f"Last on one machine ({machine['cpu']}, {machine['num_cpus']} CPUs; torch {machine['versions']['torch']})."
    order = [str(one) for one in KINDS]
    line = next((line for line in text.splitlines() if line.startswith(f"| {kind} |")), "")
    earlier = [cell.strip() for cell in line.split("|")[2:-1]] or ["not run", "", "0", "0", ""]
    mutants = earlier[:2] if caught is None else [caught, date]
    without = earlier[2:] if clean is None else [*map(str, clean), date]
    rows = {str(kind): [str(kind), *mutants, *without]}
    return replace_rows(text, rows, begin=BEGIN, headings=_HEADINGS, order=order, note=note)
