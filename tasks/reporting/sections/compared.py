"""What was compared, on what and when, and how each cell spread the work."""

from collections import Counter
from typing import Any

from tasks.data.sources import row_policy
from tasks.process import wording
from tasks.records.facts import ComparisonFacts, DatasetFacts, NodeFacts, SliceFacts, SourceFacts
from tasks.reporting.blocks import Block, Facts, Items, Table, tabulate
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results

TITLE = "What was compared"

_FEW_CLASSES = 4


def make_blocks(results: Results) -> list[Block]:
    """Return the facts, the work of each cell, and the machines where a cell had several."""
    nodes = tabulate_nodes(results)
    left_out = [Items([f"Left out: {name}: {why}." for name, why in results.left_out.items()])]
    return [
        Facts(tell_facts(results)),
        tabulate_work(results),
        *left_out * bool(results.left_out),
        *[nodes] * bool(nodes.rows),
    ]


def tell_facts(results: Results) -> list[tuple[str, str]]:
    """Return (fact, value) of what was compared, on what and when."""
    facts, machine = results.comparison, results.comparison.machine
    model, dataset, train = facts.model, facts.dataset, facts.train
    weights = "random start weights" if model.is_random_weights else "pretrained"
    rows = sum(part.num_rows for part in facts.ranges)
    tokens = sum(part.num_tokens for part in facts.ranges)
    gpus = wording.join_names([f"{gpu.name} ({gpu.memory_gib:g} GiB)" for gpu in machine.gpus])
    installed = {**machine.versions, **facts.recorded.get("packages", {})}
    versions = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    return [
        (
            "Model",
            f"{model.label}; {model.model_type}, {wording.format_count(model.num_parameters)} parameters, {weights}",
        ),
        ("Model source", _describe_source(model)),
        ("Data", f"{dataset.label}; {wording.format_count(dataset.num_rows)} rows read"),
        ("Data source", _describe_source(dataset)),
        (
            "Ranges",
            f"{', '.join(part.range for part in facts.ranges)} ({wording.format_count(rows)} rows"
            f"{'' if facts.unit == 'image' else f', {wording.format_count(tokens)} tokens'}); held out: "
            f"{facts.heldout.range}{f' of {dataset.heldout_source}' if dataset.heldout_source else ''}",
        ),
        ("Rows", _describe_rows(facts)),
        (
            "Work",
            f"{facts.workload}, {wording.format_plural(int(train['epochs']), 'epoch')}, {train['global_batch_size']} "
            f"samples per step, {_describe_sample(facts)}, {_describe_optimizer(train)}, {train['precision']}, seed "
            f"{train['seed']}{_describe_adapter(train)}; {_describe_scaling(results)}",
        ),
        (
            "Machine",
            f"{gpus + ', ' if gpus else 'no GPU, '}{machine.cpu}, {wording.format_plural(machine.num_cpus, 'CPU')}, "
            f"{machine.os}" + (f", driver {machine.driver}" if machine.driver else ""),
        ),
        ("Versions", versions),
        *[
            (title, ", ".join(f"{name} {value}" for name, value in values.items() if value is not None))
            for title, section in (("Kernels", "kernels"), ("Environment of the ranks", "environment"))
            if (values := facts.recorded.get(section))
        ],
        ("Trained", f"from {_format_utc(facts.trained_at)}; figures put together {_format_utc(results.created_at)}"),
    ]


def _describe_sample(facts: ComparisonFacts) -> str:
    """Return how large a sample is, or what is done to it."""
    if facts.unit != "image":
        return f"{facts.train['seq_len']} tokens per sample at most"
    changes = {"flip": "mirrored at random", "flip_shift": "mirrored and shifted at random"}
    return f"images {changes.get(str(facts.train['augment']), 'as they are')}"


def _describe_optimizer(train: dict[str, Any]) -> str:
    # Results of an earlier version name none: there was but one.
    is_sgd = train.get("optimizer") == "sgd"
    name = f"SGD with momentum {train['momentum']:g}" if is_sgd else "AdamW"
    betas = train.get("adam_beta1", 0.9), train.get("adam_beta2", 0.999)
    if not is_sgd and betas != (0.9, 0.999):
        name += f" with betas {betas[0]:g} and {betas[1]:g}"
    schedule = train["schedule"]
    if schedule != "constant" and train.get("schedule_floor"):
        schedule += f" to {wording.format_percent(train['schedule_floor'])} of it"
    return f"{name}, learning rate {train['learning_rate']:g} ({schedule})"


def _describe_adapter(train: dict[str, Any]) -> str:
    """Return what is trained in place of all weights; nothing where these are, or in results of an earlier version."""
    if "adapter.kind" not in train:
        return ""
    targets = train["adapter.targets"]
    layers = "every linear layer but the head" if targets == "all-linear" else targets
    rounded = ", of weights that wait in 4 bits (nf4)" if train.get("adapter.base") == "nf4" else ""
    return (
        f"; trained is a LoRA adapter alone, rank {train['adapter.rank']} and alpha {train['adapter.alpha']:g}, beside "
        f"{layers}{rounded}; checkpoints hold the model with it merged"
    )


def _describe_rows(facts: ComparisonFacts) -> str:
    """Return what became of rows that are no good, of repeated ones and of those that name special tokens."""
    parts = [*facts.ranges, facts.heldout]
    left_out: Counter[str] = Counter()
    for part in parts:
        left_out.update(part.quarantined)
    why = f" ({row_policy.describe_faults(left_out)})" if left_out else ""
    dataset = facts.dataset
    repeated = (
        f"of the rows read {wording.format_count(dataset.num_duplicate_rows)} repeat an earlier one, and "
        f"{wording.format_count(dataset.num_heldout_rows_seen)} held-out rows also stand elsewhere"
    )
    classes = "".join(f"; {part.range}: {_describe_classes(part)}" for part in parts if part.class_counts)
    num_cut = sum(part.num_cut_responses for part in parts)
    cut = f"; {wording.format_plural(num_cut, 'response')} cut at train.seq_len" if num_cut else ""
    if dataset.tokenised is not None:
        cut += f"; tokenised: {row_policy.describe_tokenised(dataset.tokenised)}"
    if facts.unit == "image":
        return f"{wording.format_count(left_out.total())} left out as no good image{why}; {repeated}{classes}"
    return (
        f"{wording.format_count(left_out.total())} left out as no good text{why}, "
        f"{wording.format_count(sum(part.num_cut_rows for part in parts))} cut to "
        f"{wording.format_count(row_policy.MAX_CHARACTERS)} characters, "
        f"{wording.format_count(sum(part.num_special_token_rows for part in parts))} name a special token, which "
        f"stayed text; {repeated}{classes}{cut}"
    )


def _describe_classes(part: SliceFacts) -> str:
    """Return how many rows of each class there are, or of many the fewest and the most."""
    counts = part.class_counts
    if len(counts) == 1:
        return f"all of the class {next(iter(counts))}"
    if len(counts) <= _FEW_CLASSES:
        return ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{len(counts)} classes, {min(counts.values())} to {max(counts.values())} rows each"


def _describe_scaling(results: Results) -> str:
    measurement = results.measurement
    if measurement is not None and measurement.scaling == "weak":
        return "strong scaling: the same in every cell; speed was measured at weak scaling, with a batch per rank"
    return "strong scaling: the same in every cell"


def _describe_source(source: SourceFacts) -> str:
    asked = f", revision {source.revision}" if source.revision else ""
    if isinstance(source, DatasetFacts) and source.config not in (None, "default"):
        asked = f", config {source.config}{asked}"
    resolved = f", commit {source.commit}" if source.commit and source.commit != source.revision else ""
    licence = f", licence {source.license}" if source.license else ""
    return f"{source.source}{asked}{resolved}{licence}, content {source.digest[:12]}"


def _format_utc(moment: str) -> str:
    """Return `2026-11-21 02:41 UTC` of an ISO time in UTC."""
    return f"{moment[:10]} {moment[11:16]} UTC"


def tabulate_work(results: Results) -> Table:
    """Return how each cell spread the same work; memory only where it was counted."""
    has_memory = any(cell.peak_memory_gib is not None for cell in results.cells)
    return tabulate(
        "How each cell spread the work",
        [
            ("Cell", lambda cell: cell.cell),
            ("Strategy", lambda cell: cell.strategy),
            ("Ranks", _describe_ranks),
            ("Launcher", lambda cell: cell.launcher),
            ("Device", lambda cell: cell.device if cell.backend is None else f"{cell.device}, {cell.backend}"),
            ("Threads", lambda cell: str(cell.threads_per_rank)),
            ("Micro-batch", lambda cell: str(cell.micro_batch_size)),
            ("Accumulation", lambda cell: str(cell.grad_accum_steps)),
            ("Exchanged", lambda cell: f"{wording.format_three_digits(cell.exchanged_mib_per_step)} MiB"),
            *[
                ("Peak memory", lambda cell: wording.format_optional(cell.peak_memory_gib, wording.format_gib)),
                ("Reserved", lambda cell: wording.format_optional(cell.peak_reserved_gib, wording.format_gib)),
            ]
            * has_memory,
            ("Checkpoints", lambda cell: wording.format_seconds(cell.checkpoint_seconds)),
            ("Resumed", lambda cell: str(cell.num_resumes)),
        ],
        results.cells,
    )


def _describe_ranks(cell: CellResults) -> str:
    return str(cell.world_size) if cell.num_nodes == 1 else f"{cell.world_size} on {cell.num_nodes} nodes"


def tabulate_nodes(results: Results) -> Table:
    """Return what each node of a cell is; no row where no cell has several."""
    nodes: list[tuple[str, NodeFacts]] = [(cell.cell, node) for cell in results.cells for node in cell.nodes]
    return tabulate(
        "Nodes",
        [
            ("Cell", lambda row: row[0]),
            ("Node", lambda row: str(row[1].node_rank)),
            ("Host", lambda row: row[1].host),
            ("Ranks", lambda row: str(row[1].num_ranks)),
            ("CPU", lambda row: row[1].cpu),
            ("CPUs", lambda row: str(row[1].num_cpus)),
            ("GPUs", lambda row: ", ".join(gpu.name for gpu in row[1].gpus) or "none"),
            ("Address", lambda row: f"{row[1].address} ({row[1].interface})"),
            (
                "GPU energy",
                lambda row: wording.format_optional(row[1].gpu_energy_joules, lambda one: f"{one / 1000:.1f} kJ"),
            ),
        ],
        nodes,
        num_row_headings=2,
    )
