"""results.json: everything that a comparison found, as one model; what the report's outputs are rendered from.

The published JSON Schema stands beside this file (results.schema.json); a test holds the two together. Ratios are
0..1, a quantity carries its unit in its name, and a withheld figure is null.
"""

import ast
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from tasks.gates.equivalence import Equivalence
from tasks.process.failure import DataError
from tasks.records.evaluation import EvaluatedSample
from tasks.records.facts import ComparisonFacts, Record
from tasks.records.gate import Gate, State
from tasks.records.measurement import Measurement
from tasks.records.stage_file import read_checked
from tasks.reporting.cell_results import CellResults
from tasks.reporting.cost import Cost
from tasks.reporting.history import History
from tasks.reporting.more_ranks import MoreRanks
from tasks.reporting.provenance import Provenance
from tasks.reporting.time_to_loss import TimeToLoss
from tasks.reporting.timeline import CellHardware, CellTimeline
from training.process.files import write_json

SCHEMA_FILE = Path(__file__).with_name("results.schema.json")


class EpochAccuracy(Record):
    """One cell after one of its segments."""

    cell: str
    """Name of the cell."""
    range: str
    """The range of the segment."""
    epoch: int
    """The epoch of the segment (1-based)."""
    step: int
    """The last optimizer step up to there (1-based)."""
    train_seconds: float
    """Seconds of optimizer steps up to there, the slowest rank's."""
    train_loss: float
    """Mean training loss of the segment, in nats per sample."""
    loss: float
    """Mean loss on the held-out rows, in nats per sample."""
    accuracy: float
    """Share of the held-out rows that it puts into the right class."""
    accuracy_top5: float | None
    """Share of the rows whose class is among the five that it takes for likeliest; null where that is not counted."""
    checkpoint: str
    """The checkpoint, below the cell's folder."""
    is_best: bool
    """Whether no other checkpoint of the cell is more accurate, and no earlier one as accurate."""
    is_last: bool
    """Whether it is the cell's last."""


class ModelQuality(Record):
    """One model on the held-out rows."""

    model: str
    """base, or the name of the cell that trained it."""
    loss: float
    """Mean loss per label, in nats: per token, or per sample where each has a class."""
    perplexity: float | None
    """exp(loss); null where that is too large for a number, and where no tokens are predicted."""
    accuracy: float | None = None
    """Share of the rows that it puts into the right class; null where rows have none."""
    accuracy_top5: float | None = None
    """Share of the rows whose class is among the five that it takes for likeliest; null where that is not counted."""
    accuracy_tokens: float | None = None
    """Share of the responses' tokens that it takes for likeliest after those before; null where rows have none."""
    num_tokens: int
    """Tokens (or images) counted, each once."""
    checkpoint: str | None
    """The checkpoint that was evaluated; null for the base model."""


class HeldoutCurve(Record):
    """Loss on the held-out rows while one cell trained, in the arithmetic of its training."""

    cell: str
    """Name of the cell."""
    steps: list[int]
    """After which steps of the run (1-based)."""
    losses: list[float]
    """Nats per label; empty where its segments were trained without a look, or before these rows were held out."""


class Quality(Record):
    """What the models are worth on rows that none was trained on."""

    heldout: str
    """The held-out rows."""
    num_rows: int
    """Rows evaluated."""
    seq_len: int
    """Tokens per row at most; longer rows are cut."""
    models: list[ModelQuality]
    """The base model first, then each cell's last checkpoint."""
    samples: list[EvaluatedSample]
    """A few held-out rows, continued by every model."""
    heldout_curves: list[HeldoutCurve] = []
    """Every cell's, where `train.eval_every_steps` asks for one."""
    time_to_loss: TimeToLoss | None = None
    """When each cell's training came to a loss; null in results of an earlier version."""
    epochs: list[EpochAccuracy] = []
    """Every cell after each of its segments, in the order of training; empty where rows have no class."""

    @property
    def is_classified(self) -> bool:
        """Whether the rows have classes."""
        return any(model.accuracy is not None for model in self.models)


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

    schema_version: Literal[5] = 5
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
        return self.is_withheld or any(item.is_withheld for item in self.cells if item.cell == cell)

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
        # Of prompts with responses the loss is of these alone.
        has_responses = any(model.accuracy_tokens is not None for model in self.quality.models)
        return "nats per token of the response" if has_responses else "nats per token"

    @property
    def baseline(self) -> CellResults:
        """The cell against which speedups are counted."""
        return self.cells[0]

    @property
    def failed_gates(self) -> list[str]:
        """The names of the gates that failed for at least one cell."""
        return [gate.name for gate in self.gates if gate.outcome == "failed"]


class DescribedSchema(GenerateJsonSchema):
    """A JSON Schema in which the docstring under each field of a model says what the field is.

    pydantic would read the docstrings of a model whenever its module is imported: half of what a stage takes to start.
    """

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of one model, its fields described."""
        return _describe_fields(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Return the same of a dataclass."""
        return _describe_fields(super().dataclass_schema(schema), schema["cls"])


def _describe_fields(results: dict[str, Any], kind: type) -> dict[str, Any]:
    for name, text in _read_field_docstrings(kind).items():
        if name in results.get("properties", {}):
            results["properties"][name]["description"] = text
    return results


def _read_field_docstrings(kind: type) -> dict[str, str]:
    """Return field -> the docstring under it, of the class and of those of ours that it extends."""
    texts: dict[str, str] = {}
    for extended in reversed([item for item in kind.__mro__ if item not in (*BaseModel.__mro__, object)]):
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(extended))).body
        assert isinstance(declared, ast.ClassDef)
        for field, below in itertools.pairwise(declared.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = inspect.cleandoc(text)
    return texts


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of results.json, as published in results.schema.json."""
    schema = Results.model_json_schema(mode="serialization", schema_generator=DescribedSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def write_results(path: Path, results: Results) -> None:
    """Write results.json, whole or not at all."""
    write_json(path, results.model_dump(mode="json"))


def read_results(path: Path) -> Results:
    """Return what an earlier report found.

    Raises DataError in one line if the file is not a results.json, or one of another version.
    """
    version = read_checked(path, TypeAdapter(_Versioned)).schema_version
    if version != (allowed := Results.model_fields["schema_version"].default):
        raise DataError(
            f"{path}: schema_version {version}, allowed: {allowed}; read it with the version that wrote it, or run "
            "`dvc repro report` where its data are"
        )
    return read_checked(path, TypeAdapter(Results))


class _Versioned(Record):
    schema_version: int


if __name__ == "__main__":
    write_json(SCHEMA_FILE, make_json_schema())
