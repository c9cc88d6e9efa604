"""results.json: everything that a comparison found, as one model; what the report's outputs are rendered from.

The published JSON Schema stands beside this file (results.schema.json); a test holds the two together. Ratios are
0..1, a quantity carries its unit in its name, and a withheld figure is null.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tasks.gates.equivalence import Equivalence
from tasks.process.failure import DataError
from tasks.records.facts import ComparisonFacts, NodeFacts, Record
from tasks.records.gate import Gate, Standing
from tasks.records.measurement import Estimate, Measurement
from tasks.reporting.chaos import Chaos
from tasks.reporting.cost import Cost
from tasks.reporting.history import History
from tasks.reporting.quality import Quality
from tasks.reporting.straggler import SlowestRank
from training.process.files import write_json

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")
SCHEMA_VERSION: Literal[2] = 2


class Spread(Record):
    """The lowest and the highest of the speedups of single segments; no confidence interval."""

    lowest: float
    """The lowest speedup of a segment."""
    highest: float
    """The highest speedup of a segment."""
    num_segments: int
    """Number of segments."""


class Figures(Record):
    """What was counted and timed over one part of a cell's training: a segment, an epoch, a range or all of it."""

    range: str | None = None
    """The range; null if the part is of every range."""
    epoch: int | None = None
    """The epoch (1-based); null if the part is of every epoch."""
    num_steps: int
    """Optimizer steps."""
    num_samples: int
    """Samples learned from."""
    num_tokens: int
    """Tokens learned from: labels, without padding."""
    train_seconds: float
    """Seconds of the optimizer steps, the slowest rank's; no checkpoint, evaluation or logging inside."""
    data_wait_share: float
    """Share of those seconds spent waiting for data."""
    tokens_per_second: float
    """num_tokens / train_seconds, all ranks together."""
    samples_per_second: float
    """num_samples / train_seconds, all ranks together."""
    loss: float
    """Mean training loss per label, in nats: per token, or per sample where each has a class."""
    speedup: float | None
    """The baseline cell's train_seconds / this cell's; null if withheld."""
    parallel_efficiency: float | None
    """speedup / how many times more ranks than the baseline; 1.0 is linear; null if withheld."""


class CellResults(Record):
    """One way to spread the work, and what it gave."""

    cell: str
    """Name of the cell."""
    is_baseline: bool
    """True for the first cell, against which speedups are counted."""
    standing: Standing
    """What the gates leave of its speedup: proven, unproven or withheld, and why."""
    strategy: str
    """How the update is computed on several ranks."""
    world_size: int
    """Number of ranks."""
    launcher: str
    """How the ranks were started."""
    num_nodes: int = 1
    """Machines that the ranks were on."""
    nodes: list[NodeFacts] = Field(default_factory=list)
    """What each of them is, where there were several."""
    device: str
    """cpu or cuda."""
    backend: str | None
    """How ranks exchange gradients; null where there is one rank only."""
    threads_per_rank: int
    """CPU threads of each rank."""
    micro_batch_size: int
    """Samples per forward pass of one rank."""
    grad_accum_steps: int
    """Forward passes of each rank per optimizer step."""
    global_batch_size: int
    """Samples per optimizer step, all ranks together."""
    num_epochs: int
    """Passes over all ranges."""
    seconds_per_epoch: float
    """Mean train_seconds of one pass over all ranges."""
    checkpoint_seconds: float
    """Seconds spent on writing checkpoints, outside train_seconds."""
    peak_memory_gib: float | None
    """Largest device memory of a rank; null where it is not counted."""
    num_resumes: int
    """How many times the training was taken up again from a checkpoint."""
    micro_batch_sizes: list[int] = Field(default_factory=list)
    """Samples per forward pass in the order of use; several if memory ran out, none in earlier results."""
    version_drift: list[str] = Field(default_factory=list)
    """What was another version when a state was saved that the training later went on from."""
    slowest_rank: SlowestRank | None = None
    """The rank that takes longest for the same work; null for one rank, and in results of an earlier version."""
    checkpoints_not_used: list[str] = Field(default_factory=list)
    """`NAME: why` of every checkpoint that was found broken, where an older one or the start was taken instead."""
    exchanged_mib_per_step: float
    """MiB that each rank put into collectives per optimizer step."""
    measured_speedup: Estimate | None = None
    """How many times as fast as the baseline, by the stage `measure`; null for the baseline, if not measured or if
    withheld."""
    measured_efficiency: Estimate | None = None
    """measured_speedup / how many times more ranks than the baseline; null as that is."""
    karp_flatt: float | None
    """Experimentally determined serial fraction, of the measured speedup if there is one; null for one rank or if
    withheld."""
    speedup_of_segments: Spread | None
    """Spread of the speedup over the segments; null for the baseline, a single segment or if withheld."""
    final_checkpoint: str
    """The last checkpoint, below the cell's folder."""
    whole: Figures
    """All of the training."""
    epochs: list[Figures]
    """Each pass over all ranges."""
    ranges: list[Figures]
    """Each range, all epochs together."""
    segments: list[Figures]
    """Each segment, in the order of training."""

    @property
    def is_withheld(self) -> bool:
        """Whether its speedup is withheld."""
        return self.standing.state == "withheld"

    @property
    def speedup(self) -> float | None:
        """The speedup that is reported: the measured one, or that of the whole training where there is no other."""
        return self.whole.speedup if self.measured_speedup is None else self.measured_speedup.value

    @property
    def parallel_efficiency(self) -> float | None:
        """The share of linear speedup that belongs to `speedup`."""
        return self.whole.parallel_efficiency if self.measured_efficiency is None else self.measured_efficiency.value


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

    schema_version: Literal[2] = SCHEMA_VERSION
    """Version of this file's layout."""
    created_at: str
    """UTC time at which the figures were put together."""
    name: str
    """Name of the comparison."""
    description: str
    """What it compares, in one sentence."""
    verdict: str
    """The answer, in one sentence."""
    label: str | None
    """What kind of demonstration this is and what its figures do not say; null for GPUs and real data."""
    gates: list[Gate] = Field(min_length=1)
    """The checks that stand before a speedup, in the order of the report, each with its finding of every cell."""
    equivalence: list[Equivalence] = Field(default_factory=list)
    """Updates of each cell's ranks against those of one process; empty where that was not measured."""
    chaos: Chaos | None = None
    """How far two right trainings of this work part; null where that was not measured."""
    comparison: ComparisonFacts
    """What was compared."""
    cells: list[CellResults] = Field(min_length=1)
    """The cells, the baseline first."""
    quality: Quality
    """Loss and perplexity on the held-out rows, and samples."""
    loss_curves: list[LossCurve]
    """Training loss of the cells."""
    measurement: Measurement | None = None
    """What the stage `measure` found; null where it did not run."""
    cost: Cost | None = None
    """What the cells cost whose speedup is given; null if none is."""
    history: History | None = None
    """This comparison among its earlier runs; null in results of an earlier version."""

    @property
    def is_withheld(self) -> bool:
        """Whether no speedup or efficiency is given anywhere: that of every cell is withheld, or the baseline's is."""
        return self.baseline.is_withheld or (len(self.cells) > 1 and not self.answers)

    def is_hidden(self, cell: str) -> bool:
        """Return whether what compares this cell with the baseline is withheld."""
        return self.is_withheld or any(one.is_withheld for one in self.cells if one.cell == cell)

    @property
    def answers(self) -> list[CellResults]:
        """The cells whose speedup is given, proven or not."""
        return [cell for cell in self.cells[1:] if not cell.is_withheld]

    @property
    def is_speedup_measured(self) -> bool:
        """Whether every cell but the baseline has a measured speedup, withheld or not."""
        if self.measurement is None or len(self.cells) < 2:
            return False
        return all(cell.is_withheld or cell.measured_speedup for cell in self.cells[1:])

    @property
    def unit(self) -> str:
        """What throughput counts: token or image."""
        return self.comparison.unit

    @property
    def loss_unit(self) -> str:
        """What a loss is counted in."""
        return "nats per sample" if self.quality.is_classified else "nats per token"

    @property
    def baseline(self) -> CellResults:
        """The cell against which speedups are counted."""
        return self.cells[0]

    @property
    def failed_gates(self) -> list[str]:
        """The names of the gates that failed for at least one cell."""
        return [gate.name for gate in self.gates if gate.verdict == "failed"]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of results.json, as published in results.schema.json."""
    schema = Results.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write_results(path: Path, results: Results) -> None:
    """Write results.json, whole or not at all."""
    write_json(path, results.model_dump(mode="json"))


def read_results(path: Path) -> Results:
    """Return what an earlier report found; raises DataError in one line if the file is not a results.json."""
    try:
        return Results.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; run `make compare` to make one") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise DataError(
            f"{path}: {where}: {first['msg']}; allowed: a results.json of schema {SCHEMA_VERSION}; run `make compare` "
            "to make one"
        ) from None
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}; allowed: a results.json of this project") from None


if __name__ == "__main__":
    write_json(SCHEMA_FILE, json_schema())
