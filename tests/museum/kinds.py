"""What the museum was shown on: workloads and precisions, each a row of a table in docs/museum.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.marked_table import replace_rows

BEGIN = "<!-- written by make museum: begin -->"
_HEADINGS = ("trained", "mutants caught by any gate", "without a defect", "alarms in those", "on")
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


def with_kinds(text: str, rows: Mapping[str, Sequence[str]], *, machine: Mapping[str, Any]) -> str:
    """Return the document with these rows in its table; those of other kinds stay what they were."""
    note = f"Last on one machine ({machine['cpu']}, {machine['num_cpus']} CPUs; torch {machine['versions']['torch']})."
    order = [str(kind) for kind in KINDS]
    return replace_rows(text, rows, begin=BEGIN, headings=_HEADINGS, order=order, note=note)
