"""What the tracker is told, as plain values; no tracker's own words here."""

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.inputs.snapshot import walk_leaves
from tasks.params import Params
from tasks.records.facts import Record
from tasks.records.manifests import MachineFile, SlicesManifest
from tasks.records.run import CellFacts, read_segment, require_sealed
from training.process.files import digest_file, digest_json
from training.record.ledger_file import STEPS, count_targets

_MAX_CHARACTERS = 6_000
"""MLflow cuts or refuses longer values of parameters and tags."""
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow refuses in names."""

_STEP_METRICS = ("loss", "learning_rate", "grad_norm", "data_wait_seconds", "num_tokens", "heldout_loss")
_EPOCH_METRICS = (
    "loss", "train_seconds", "data_wait_seconds", "checkpoint_seconds", "tokens_per_second", "samples_per_second",
    "num_samples", "num_tokens", "num_steps", "num_resumes", "peak_memory_gib",
    "peak_reserved_gib",
)  # fmt: skip

_SYSTEM_METRICS = {
    "cores_used": ("rank_{}_cpu_utilization_percentage", 100.0),
    "host_gib": ("rank_{}_memory_usage_megabytes", 2**30 / 1e6),
    "gpu_utilisations": ("gpu_{}_utilization_percentage", 100.0),
    "gpu_watts": ("gpu_{}_power_usage_watts", 1.0),
    "gpu_memory_gib": ("gpu_{}_memory_usage_megabytes", 2**30 / 1e6),
}
"""Field of a reading (tasks/reporting/timeline.py) -> name of its figures rank by rank, and what multiplies them."""

_NOT_OF_REPORT = ("hub", ".gitignore", "README.md", "search", "search.html", "search.md")
"""Names in reports/."""


def find_checkout() -> Path:
    """Return this folder; of a copy of it that `dvc exp run --temp` makes below .dvc and removes, the folder itself."""
    here = Path.cwd()
    return next((parent.parent for parent in here.parents if parent.name == ".dvc"), here)


Figures = dict[str | None, dict[str, float]]
"""The final figures of each cell's run, by name, and under None of the comparison's."""

_RATES = ("tokens_per_second", "samples_per_second")
HEADLINE = ("final/speedup", "final/tokens_per_second")
"""Of the cell that the verdict is about, the baseline where no speedup is given, these stand beside the comparison."""
Tags = dict[str | None, dict[str, str]]
"""The tags of each cell's run and, under None, of the comparison's."""

STEP_ANCHOR, EPOCH_ANCHOR = "num_tokens", "epoch/num_tokens"
"""Every point has one of these metrics and is stored whole or not at all: it tells which points a store has."""


class TrackedComparison(Record):
    """What the run of a comparison is; where it is kept, which may hold credentials, is no part of it."""

    experiment: str
    """Name that the runs of comparisons stand under."""
    name: str
    """Name of the run."""
    description: str
    """Note on the run."""
    digest: str
    """Identity: a comparison with the same digest goes on in the same run."""
    facts: dict[str, str]
    """Parameters and facts about the machine, one level deep."""


@dataclass(frozen=True)
class Point:
    """The metrics of one optimizer step, or of one segment at its last step."""

    step: int
    """Optimizer step, 1-based over the whole run of the cell."""
    timestamp_ms: int
    """UTC, milliseconds since 1970."""
    values: dict[str, float]

    @property
    def place(self) -> tuple[bool, int]:
        """Its place in a run: no two points of a run have the same; steps come before what segments came to."""
        return EPOCH_ANCHOR in self.values, self.step


@dataclass(frozen=True)
class Report:
    """What a finished comparison came to."""

    files: dict[str, Path]
    """Path inside the report -> file."""
    figures: Figures
    """The final figures; a withheld one is absent, an unproven one has another name."""
    tags: Tags
    """Gates and what they leave of the speedups."""
    system: dict[str, list[Point]] = field(default_factory=dict)
    """Cell -> what its ranks took of cores, memory and GPUs, block by block of measuring."""

    @property
    def digest(self) -> str:
        """Of the files' content."""
        return digest_json({name: digest_file(path) for name, path in self.files.items()})


def describe_comparison(params: Params, run: CellFacts, *, slices: Path, machine: Path) -> TrackedComparison:
    """Return the comparison that `run` (run.json of any of its cells, or its beginning) belongs to.

    Its identity is the validated params, without what changes no number (where it is tracked and published, its
    description, what a search tries), NUMERICS_VERSION, and the digests of base model, data and machine.
    """
    content = params.model_dump(mode="json", exclude={"tracking", "upload", "description", "search"})
    facts, parts = MachineFile.read(machine), SlicesManifest.read(slices).slices
    identity = {
        "params": content,
        "numerics": run.numerics_version,
        "base_model": run.base_model_digest,
        "machine": facts.digest,
        "slices": {name: parts[name].digest for name in (*map(str, params.ranges), params.heldout_name)},
    }
    return TrackedComparison(
        experiment=params.tracking.experiment,
        name=params.name,
        description=params.description,
        digest=digest_json(identity),
        facts=flatten(
            {**content, "machine": facts.model_dump(exclude={"file_version"}), "numerics_version": run.numerics_version}
        ),
    )


def flatten(value: Mapping[str, Any]) -> dict[str, str]:
    """Return every leaf under its dotted key, as params.yaml would write it, short enough for MLflow."""
    leaves = {re.sub(_NOT_IN_KEYS, "", key): leaf for key, leaf in walk_leaves(dict(value)) if leaf != {}}
    return {key: _format_value(leaf)[:_MAX_CHARACTERS] for key, leaf in leaves.items()}


def make_step_point(event: Mapping[str, Any], *, timestamp_ms: int) -> Point:
    """Return the metrics of a step event; those that the training did not take, or of no target, are absent."""
    values = {key: float(event[key]) for key in _STEP_METRICS if event.get(key) is not None}
    if count_targets(event) == 0:
        del values["loss"]  # logged as 0
    if event.get("seconds"):
        values["step_seconds"] = float(event["seconds"])
        values["tokens_per_second"] = event["num_tokens"] / event["seconds"]
    return Point(event["step"], timestamp_ms, values)


def read_segment_points(folder: Path) -> tuple[list[Point], Point]:
    """Return a finished segment's step points, and its epoch metrics at its last step.

    The times follow from the segment's start and the seconds of its steps, so that they are the same at every call.
    """
    facts = read_segment(folder)
    now = datetime.datetime.fromisoformat(facts.started_at).timestamp()
    points = []
    require_sealed(folder / STEPS)
    with (folder / STEPS).open(encoding="utf-8") as lines:
        for event in map(json.loads, lines):
            now += event["seconds"]
            points.append(make_step_point(event, timestamp_ms=int(now * 1000)))
    figures = {key: getattr(facts, key) for key in _EPOCH_METRICS}
    epoch = {f"epoch/{key}": float(value) for key, value in figures.items() if value is not None}
    return points, Point(facts.last_step, int(now * 1000), epoch)


def collect_report(results: Mapping[str, Any], folder: Path) -> Report:
    """Return the report that stands in `folder`, without what the next stage publishes."""
    # reports/hub/ is that: checkpoints. README.md says what the folder is for; a search has runs of its own.
    result = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    files = {str(name): path for name, path in result.items() if name.parts[0] not in _NOT_OF_REPORT}
    system: dict[str, list[Point]] = {}
    for item in results.get("hardware", []):
        for step, reading in enumerate(item["readings"], start=1):
            values = {
                f"system/{name.format(number)}": value * factor
                for key, (name, factor) in _SYSTEM_METRICS.items()
                for number, value in enumerate(reading[key] or [])
                if value is not None
            }
            system.setdefault(item["cell"], []).append(Point(step, round(reading["started_at"] * 1000), values))
    figures, tags = collect_final_figures(results), make_gate_tags(results)
    return Report(files=files, figures=figures, tags=tags, system=system)


def collect_final_figures(results: Mapping[str, Any]) -> Figures:
    """Return what results.json found: cell -> figures, and under None the HEADLINE and those of the base model.

    Figures are the measured numbers, counts and settings are not. What compares a cell with the baseline is absent
    where the gates withhold it, and called `unproven_...` where they leave it unproven: whoever plots one figure of
    many runs sees no other. Where the stage `measure` ran, speedup, efficiency and rates are what it found.
    """
    figures: Figures = {None: {}}
    for cell in results["cells"]:
        figure = {**cell, **cell["whole"], **_collect_measured_figures(cell)}
        figures[cell["cell"]] = {f"final/{key}": value for key, value in figure.items() if isinstance(value, float)}
    for model in results["quality"]["models"]:
        is_base = model["model"] == "base"
        for key in ("loss", "perplexity", "accuracy", "accuracy_top5", "accuracy_tokens"):
            if model.get(key) is not None:
                name = f"final/{'base_' if is_base else ''}heldout_{key}"
                figures.setdefault(None if is_base else model["model"], {})[name] = float(model[key])
    answers = [cell for cell in results["cells"][1:] if cell["standing"]["state"] in ("proven", "unproven")]
    shown = [figures[cell["cell"]] for cell in answers or results["cells"][:1]]
    # Where the verdict is about an unproven cell, another's speedup is none of the comparison.
    names = HEADLINE if results.get("state") in (None, "proven") else HEADLINE[1:]
    best = max(shown, key=lambda item: [item.get(name, 0.0) for name in names])
    figures[None] |= {name: best[name] for name in names if name in best}
    return figures


def _collect_measured_figures(cell: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of the stage `measure` of one cell; none where it did not run."""
    speed, speedup = cell["speed"], cell["speedup"]
    if speed is None:
        return {}
    figures = {
        "step_seconds": speed["step_seconds"]["value"],
        **{f"{name}_of_whole_training": cell["whole"][name] for name in _RATES},
        **{name: speed[name] for name in (*_RATES, "mfu", "gpu_utilisation", "gpu_watts", "joules_per_token")},
    }
    doubt = {"proven": "", "unproven": "unproven_"}.get(cell["standing"]["state"])
    if speedup is not None and doubt is not None:
        figures |= {
            f"{doubt}speedup": speedup["value"],
            f"{doubt}speedup_low": speedup["low"],
            f"{doubt}speedup_high": speedup["high"],
            f"{doubt}parallel_efficiency": speedup["parallel_efficiency"]["value"],
            f"{doubt}karp_flatt": speedup["karp_flatt"],
        }
    return figures


def make_gate_tags(results: Mapping[str, Any]) -> Tags:
    """Return cell -> one tag per gate, its outcome and what it compared, and what they leave of the speedup.

    Under None: the tags of the comparison, one per gate with the cells that decided it, and one per cell.
    """
    tags: Tags = {None: {"state": results.get("state") or "", "verdict": results.get("verdict") or ""}}
    tags[None]["mlflow.source.git.commit"] = (results.get("provenance") or {}).get("commit") or ""
    for gate in results["gates"]:
        key = re.sub(_NOT_IN_KEYS, "", f"gate.{gate['name']}")
        for result in gate["findings"]:
            tags.setdefault(result["cell"], {})[key] = f"{result['outcome']}: {result['compared']}"
        deciding = [finding["compared"] for finding in gate["findings"] if finding["outcome"] == gate["outcome"]]
        tags[None][key] = ": ".join([gate["outcome"], *filter(None, ["; ".join(dict.fromkeys(deciding))])])
    for cell in results["cells"]:
        standing = cell["standing"]
        payload = ": ".join(filter(None, [standing["state"], ", ".join(standing["gates"]), standing["reason"]]))
        tags[None][f"speedup.{cell['cell']}"] = tags.setdefault(cell["cell"], {})["speedup"] = payload
    return {cell: {key: text[:_MAX_CHARACTERS] for key, text in tag.items()} for cell, tag in tags.items()}


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_format_value(part) for part in value)
    return value if isinstance(value, str) else json.dumps(value)
