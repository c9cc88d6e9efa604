"""results.json: everything that a comparison found, as one model; what the report's outputs are rendered from.

The published JSON Schema stands beside this file (results.schema.json); a test holds the two together. Ratios are
0..1, a quantity carries its unit in its name, and a withheld figure is null.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from tasks.gates.equivalence import Equivalence
from tasks.records.facts import ComparisonFacts, Record
from tasks.records.gate import Gate, State
from tasks.records.measurement import Measurement
from tasks.records.stage_file import read_checked
from tasks.reporting.cell_results import CellResults
from tasks.reporting.cost import Cost
from tasks.reporting.hardware import CellHardware
from tasks.reporting.history import History
from tasks.reporting.more_ranks import MoreRanks
from tasks.reporting.provenance import Provenance
from tasks.reporting.quality import Quality
from tasks.reporting.timeline import CellTimeline
from training.process.files import write_json

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")


class LossCurve(Record):
    """Training loss of one cell over its optimizer steps, thinned for drawing; losses.csv has every step."""

    cell: str
    """Name of the cell."""
    steps_per_point: int
    """Each point is the mean over this many steps."""
    steps: list[int]
    """The last step of each point (1-based)."""
    losses: list[float]
    """Loss in nats per label."""


class Results(Record):
    """What one comparison found."""

    schema_version: Literal[3] = 3
    """Version of this file's layout."""
    created_at: str
    """UTC time at which the figures were put together."""
    name: str
    """Name of the comparison."""
    description: str
    """What it compares, in one sentence."""
    verdict: str
    """The answer, in one sentence."""
    state: State | None = None
    """What may be believed of it; unproven also where the interval holds 1 and is wide. Null in earlier results."""
    label: str | None
    """What kind of demonstration this is and what its figures do not say; null for GPUs and real data."""
    gates: list[Gate] = Field(min_length=1)
    """The checks that stand before a speedup, in the order of the report, each with its finding of every cell."""
    equivalence: list[Equivalence] = []
    """Updates of each cell against those of one process; empty where none was checked."""
    comparison: ComparisonFacts
    """What was compared."""
    cells: list[CellResults] = Field(min_length=1)
    """The cells, the baseline first."""
    left_out: dict[str, str] = {}
    """Name -> why it is no cell: what could have been compared and was not."""
    quality: Quality
    """Loss and perplexity on the held-out rows, and samples."""
    loss_curves: list[LossCurve]
    """Training loss of the cells."""
    measurement: Measurement | None = None
    """What the stage `measure` found; null where it did not run."""
    cost: Cost | None = None
    """What the cells cost whose speedup is given; null if none is."""
    more_ranks: list[MoreRanks] = []
    """What a line through the speedup and the link says of more ranks, a model; empty without either."""
    timelines: list[CellTimeline] = []
    """One recorded step of each cell, thinned for drawing; empty where none was recorded."""
    hardware: list[CellHardware] = []
    """What ranks and GPUs did while the speed was measured; empty in results of an earlier version."""
    provenance: Provenance | None = None
    """Where the figures come from; null in results of an earlier version."""
    history: History | None = None
    """This comparison among its earlier runs; null in results of an earlier version."""

    @property
    def is_withheld(self) -> bool:
        """Whether no speedup or efficiency is given anywhere: that of every cell is withheld, or the baseline's is."""
        others = self.cells[1:]
        return self.baseline.is_withheld or (bool(others) and all(cell.is_withheld for cell in others))

    def is_hidden(self, cell: str) -> bool:
        """Return whether what compares this cell with the baseline is withheld."""
        return self.is_withheld or any(one.is_withheld for one in self.cells if one.cell == cell)

    @property
    def answers(self) -> list[CellResults]:
        """The cells whose speedup is given, proven or not."""
        return [cell for cell in self.cells[1:] if cell.standing.state in ("proven", "unproven")]

    @property
    def unit(self) -> str:
        """What throughput counts: token or image."""
        return self.comparison.unit

    @property
    def loss_unit(self) -> str:
        """What a loss is counted in."""
        if self.quality.is_classified:
            return "nats per sample"
        return "nats per token of the response" if self.quality.has_responses else "nats per token"

    @property
    def baseline(self) -> CellResults:
        """The cell against which speedups are counted."""
        return self.cells[0]

    @property
    def failed_gates(self) -> list[str]:
        """The names of the gates that failed for at least one cell."""
        return [gate.name for gate in self.gates if gate.verdict == "failed"]


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of results.json, as published in results.schema.json."""
    from tasks.reporting.described import DescribedSchema

    schema = Results.model_json_schema(mode="serialization", schema_generator=DescribedSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write_results(path: Path, results: Results) -> None:
    """Write results.json, whole or not at all."""
    write_json(path, results.model_dump(mode="json"))


def read_results(path: Path) -> Results:
    """Return what an earlier report found; raises DataError in one line if the file is not a results.json."""
    return read_checked(path, TypeAdapter(Results))


if __name__ == "__main__":
    write_json(SCHEMA_FILE, make_json_schema())
