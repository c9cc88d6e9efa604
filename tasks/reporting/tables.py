"""The tables of the report as words, for the page and the markdown alike."""

from dataclasses import dataclass, replace

from tasks.reporting import wording
from tasks.reporting.quality import ModelQuality, Sample
from tasks.reporting.results import CellResults, Figures, Results

_MAX_EPOCH_ROWS = 40
NOTHING = "–"
"""In place of a verdict where a gate says nothing about a cell."""


@dataclass(frozen=True)
class Table:
    """A table whose headings are words of the glossary.

    The first `num_row_headings` columns name the row, the last `num_prose` are sentences, those between are figures.
    """

    title: str
    headings: list[str]
    rows: list[list[str]]
    num_row_headings: int = 1
    num_prose: int = 0

    def in_unit(self, unit: str) -> "Table":
        """Return it with headings that speak of what the comparison counts."""
        return replace(self, headings=[wording.in_unit(heading, unit) for heading in self.headings])


def speed_of_cells(results: Results) -> Table:
    """Return how fast each cell was over the whole training; Karp-Flatt only where no speedup was measured."""
    is_measured = results.is_speedup_measured
    headings = ["Cell", "Ranks", "Seconds per epoch", "Tokens/s", "Samples/s", "Speedup", "Efficiency"]
    headings += ["Speedup of segments", *["Karp-Flatt"] * (not is_measured), "Data wait"]
    rows = [
        [
            cell.cell,
            str(cell.world_size),
            wording.seconds(cell.seconds_per_epoch),
            *_rates(cell.whole),
            _spread(results, cell),
            *([] if is_measured else [karp_flatt(results, cell)]),
            wording.small_percent(cell.whole.data_wait_share),
        ]
        for cell in results.cells
    ]
    return Table("Each cell", headings, rows).in_unit(results.unit)


def speed_of_ranges(results: Results) -> Table:
    """Return how fast each cell was on each range."""
    headings = ["Range", "Cell", "Seconds", "Tokens/s", "Samples/s", "Speedup", "Efficiency"]
    rows = [
        [part.range, cell.cell, wording.seconds(part.train_seconds), *_rates(part)]
        for name in [part.range for part in results.baseline.ranges]
        for cell in results.cells
        for part in cell.ranges
        if part.range is not None and part.range == name
    ]
    return Table("Each range", headings, rows, num_row_headings=2).in_unit(results.unit)


def speed_of_epochs(results: Results) -> Table | None:
    """Return how fast each cell was in each epoch; None where there is one epoch, or too many for a table."""
    num_epochs = results.baseline.num_epochs
    if num_epochs == 1 or num_epochs * len(results.cells) > _MAX_EPOCH_ROWS:
        return None
    headings = ["Epoch", "Cell", "Seconds", "Tokens/s", "Samples/s", "Speedup", "Efficiency", "Loss"]
    rows = [
        [str(part.epoch), cell.cell, wording.seconds(part.train_seconds), *_rates(part), wording.loss(part.loss)]
        for number in [part.epoch for part in results.baseline.epochs]
        for cell in results.cells
        for part in cell.epochs
        if part.epoch == number
    ]
    return Table("Each epoch", headings, rows, num_row_headings=2).in_unit(results.unit)


def quality_of_models(results: Results) -> Table:
    """Return loss and perplexity, or accuracy, of the base model and of each cell's last checkpoint."""
    models = results.quality.models
    base = next((model for model in models if model.model == "base"), None)
    rows = [
        [
            "base model" if model.model == "base" else model.model,
            wording.loss(model.loss),
            *_worth(results, model),
            wording.NOT_AVAILABLE if base is None or model is base else f"{model.loss - base.loss:+.4f}",
            wording.count(model.num_tokens),
        ]
        for model in models
    ]
    worth = ["Accuracy", *["Top-5 accuracy"] * _has_top5(results)] if results.quality.is_classified else ["Perplexity"]
    headings = ["Model", "Loss", *worth, "Against base", "Tokens"]
    return Table("On the held-out rows", headings, rows).in_unit(results.unit)


def _has_top5(results: Results) -> bool:
    return any(model.accuracy_top5 is not None for model in results.quality.models)


def _worth(results: Results, model: ModelQuality) -> list[str]:
    """Return what a model is worth beside its loss."""
    if not results.quality.is_classified:
        return [wording.NOT_AVAILABLE if model.perplexity is None else wording.three_digits(model.perplexity)]
    shares = [model.accuracy, *[model.accuracy_top5] * _has_top5(results)]
    return [wording.NOT_AVAILABLE if share is None else wording.small_percent(share) for share in shares]


def spread_of_work(results: Results) -> Table:
    """Return how each cell spread the same work; memory only where it was counted."""
    has_memory = any(cell.peak_memory_gib is not None for cell in results.cells)
    headings = ["Cell", "Strategy", "Ranks", "Launcher", "Device", "Threads", "Micro-batch", "Accumulation"]
    headings += ["Exchanged", *["Peak memory"] * has_memory, "Checkpoints", "Resumed"]
    rows = [
        [
            cell.cell,
            cell.strategy,
            str(cell.world_size) if cell.num_nodes == 1 else f"{cell.world_size} on {cell.num_nodes} nodes",
            cell.launcher,
            cell.device if cell.backend is None else f"{cell.device}, {cell.backend}",
            str(cell.threads_per_rank),
            str(cell.micro_batch_size),
            str(cell.grad_accum_steps),
            f"{wording.three_digits(cell.exchanged_mib_per_step)} MiB",
            *([_memory(cell.peak_memory_gib)] * has_memory),
            wording.seconds(cell.checkpoint_seconds),
            str(cell.num_resumes),
        ]
        for cell in results.cells
    ]
    return Table("How each cell spread the work", headings, rows)


def nodes(results: Results) -> Table | None:
    """Return what each node of a cell is; None where no cell has several."""
    rows = [
        [
            cell.cell,
            str(node.node_rank),
            node.host,
            str(node.num_ranks),
            node.cpu,
            str(node.num_cpus),
            ", ".join(gpu.name for gpu in node.gpus) or "none",
            f"{node.address} ({node.interface})",
            wording.NOT_AVAILABLE if node.gpu_energy_joules is None else f"{node.gpu_energy_joules / 1000:.1f} kJ",
        ]
        for cell in results.cells
        for node in cell.nodes
    ]
    headings = ["Cell", "Node", "Host", "Ranks", "CPU", "CPUs", "GPUs", "Address", "GPU energy"]
    return Table("Nodes", headings, rows, num_row_headings=2) if rows else None


def gates(results: Results) -> Table:
    """Return the verdict of each gate for each cell, and in the last row what they leave of its speedup."""
    names = [cell.cell for cell in results.cells]
    rows = [
        [
            wording.in_unit(gate.name, results.unit),
            *(NOTHING if (found := gate.of(name)) is None else found.verdict for name in names),
            "; ".join([gate.compared, *(one.true_figure for one in gate.findings if one.true_figure)]),
        ]
        for gate in results.gates
    ]
    rows.append(["Speedup", *("baseline" if cell.is_baseline else cell.standing.state for cell in results.cells), ""])
    return Table("Gates", ["Gate", *names, "What was compared"], rows, num_prose=1 + len(names))


def standings(results: Results) -> Table:
    """Return what the gates leave of each cell's speedup, and which decided."""
    rows = [
        [cell.cell, cell.standing.state, wording.listed(cell.standing.gates), cell.standing.reason or ""]
        for cell in results.cells
        if not cell.is_baseline or cell.is_withheld
    ]
    return Table(
        "What they leave of each speedup", ["Cell", "Standing", "Gate", "What was compared"], rows, num_prose=3
    )


def equivalence(results: Results) -> Table | None:
    """Return how far each cell's updates were from one process's; None where that was not measured."""
    rows = [
        [
            part.cell,
            f"{part.compared} of {part.num_steps} updates, the widest",
            wording.difference(part.relative_l2),
            wording.difference(part.max_abs),
            "yes" if part.is_bitwise_equal else "no",
            wording.difference(part.noise_floor),
            wording.difference(part.tolerance),
        ]
        for part in results.equivalence
    ]
    if not rows:
        return None
    headings = ["Cell", "Compared", "Difference", "Largest", "Bitwise equal", "Noise floor", "Allowed"]
    return Table("Updates of the ranks against those of one process", headings, rows, num_row_headings=2)


def sample_texts(sample: Sample) -> list[tuple[str, str]]:
    """Return (whose, text): how the row goes on, and what the models wrote; those that wrote the same are one."""
    writers: dict[str, list[str]] = {}
    for model, text in sample.continuations.items():
        writers.setdefault(text.strip(), []).append("base model" if model == "base" else model)
    written = [(wording.listed(models), text) for text, models in writers.items()]
    return [("the text itself", sample.reference.strip()), *written]


def _rates(part: Figures) -> list[str]:
    return [
        wording.three_digits(part.tokens_per_second),
        wording.three_digits(part.samples_per_second),
        wording.ratio(part.speedup),
        wording.percent(part.parallel_efficiency),
    ]


def _spread(results: Results, cell: CellResults) -> str:
    spread = cell.speedup_of_segments
    if spread is None:
        is_given = cell.is_baseline or len(cell.segments) < 2 or not cell.is_withheld
        return wording.NOT_AVAILABLE if is_given else wording.WITHHELD
    return f"{spread.lowest:.2f}x to {spread.highest:.2f}x ({spread.num_segments})"


def karp_flatt(results: Results, cell: CellResults) -> str:
    """Return the serial fraction of a cell, or why there is none."""
    if cell.karp_flatt is None:
        return wording.WITHHELD if cell.is_withheld and cell.world_size > 1 else wording.NOT_AVAILABLE
    return f"{cell.karp_flatt:.2f}"


def _memory(gib: float | None) -> str:
    return wording.NOT_AVAILABLE if gib is None else f"{wording.three_digits(gib)} GiB"
