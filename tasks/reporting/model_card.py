"""The text of the model card of a published comparison; its metadata is added in tasks/services/hub.py."""

from collections.abc import Iterable, Sequence

from tasks.reporting.facts import SourceFacts
from tasks.reporting.quality import ModelQuality
from tasks.reporting.results import CellResults, Results
from tasks.reporting.tables import gates

_MARKS = {"passed": "✓ passed", "failed": "✗ failed", "not checked": "– not checked"}


def card_text(results: Results, *, cell: str, repo_id: str | None, checkpoints: Sequence[str]) -> str:
    """Return the card's Markdown: verdict, what was trained, quality, gates and files of the published cell.

    `checkpoints` are the file names of the published ones. No speedup or efficiency is in it that is withheld.
    """
    published = next(found for found in results.cells if found.cell == cell)
    sections = [
        f"# {_plain(results.name)}",
        _plain(results.description),
        f"> **{_plain(results.label)}**" if results.label else "",
        f"**Verdict.** {_plain(results.verdict)}",
        _use(repo_id, is_classifier=results.quality.is_classified),
        "## What was trained\n\n" + _table(("", ""), _training_facts(results, published)),
        f"## Quality on the held-out rows {results.quality.heldout}\n\n" + _quality(results, cell),
        "## Gates\n\nA cell's speedup is given only if none of its gates failed, and none of the baseline's.\n\n"
        + _gates(results),
        "" if results.is_withheld else "## Speedup\n\n" + _speedups(results) + _whence(results),
        "## Files\n\n" + _table(("path", "what"), _files(checkpoints)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def metrics_of(results: Results, cell: str) -> dict[str, float]:
    """Return the published cell's loss on the held-out rows and, where there are such, perplexity or accuracy."""
    found = next((model for model in results.quality.models if model.model == cell), None)
    if found is None:
        return {}
    more = {name: getattr(found, name) for name in ("perplexity", "accuracy", "accuracy_top5")}
    return {"loss": found.loss, **{name: value for name, value in more.items() if value is not None}}


def _files(checkpoints: Sequence[str]) -> list[tuple[str, str]]:
    weights = "the weights after that range and epoch, for `torch.load(file, weights_only=True)`"
    return [
        ("`model.safetensors`, `config.json`, tokenizer", "the final weights, for `from_pretrained`"),
        *((f"`checkpoints/{name}`", weights) for name in checkpoints),
        ("`report/`", "the whole report: `index.html`, `report.md`, and `results.json` for machines"),
        ("`manifest.json`", "size and sha256 of every file"),
    ]


def _use(repo_id: str | None, *, is_classifier: bool) -> str:
    name = repo_id or "OWNER/NAME"
    kind = "AutoModelForSequenceClassification" if is_classifier else "AutoModelForCausalLM"
    return (
        f"```python\nfrom transformers import {kind}, AutoTokenizer\n\n"
        f'model = {kind}.from_pretrained("{name}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")\n```'
    )


def _training_facts(results: Results, cell: CellResults) -> list[tuple[str, str]]:
    facts = results.comparison
    versions = ", ".join(f"{name} {version}" for name, version in facts.machine.versions.items() if version)
    gpus = ", ".join(gpu.name for gpu in facts.machine.gpus) or "no GPU"
    ranks = "1 rank" if cell.world_size == 1 else f"{cell.world_size} ranks"
    spread = (
        f"strategy {cell.strategy}, {ranks} on {cell.device}, {cell.global_batch_size} samples per step: "
        f"{cell.micro_batch_size} per forward and rank, {cell.grad_accum_steps} forwards"
    )
    return [
        ("base model", _source(facts.model)),
        ("parameters", f"{facts.model.num_parameters:,}"),
        ("data set", _source(facts.dataset)),
        ("rows trained on", ", ".join(part.range for part in facts.ranges)),
        ("cell", f"{cell.cell} ({spread})"),
        ("training", ", ".join(f"{name} {value}" for name, value in facts.train.items())),
        ("optimizer steps", f"{cell.whole.num_steps:,}"),
        ("tokens learned from", f"{cell.whole.num_tokens:,}"),
        ("machine", f"{facts.machine.cpu}, {facts.machine.num_cpus} CPUs, {gpus}"),
        ("versions", versions),
        ("trained at", facts.trained_at),
    ]


def _quality(results: Results, cell: str) -> str:
    rows = [
        (
            "base model" if model.model == "base" else f"cell {model.model}",
            f"{model.loss:.4f}",
            _worth(model),
            "these weights" if model.model == cell else "",
        )
        for model in results.quality.models
    ]
    worth = "accuracy" if results.quality.is_classified else "perplexity"
    return _table(("model", f"loss ({results.loss_unit})", worth, ""), rows)


def _worth(model: ModelQuality) -> str:
    if model.accuracy is not None:
        return f"{model.accuracy:.4f}"
    return "n/a" if model.perplexity is None else f"{model.perplexity:.2f}"


def _gates(results: Results) -> str:
    table = gates(results)
    rows = [[_MARKS.get(value, value) for value in row] for row in table.rows]
    return _table(("gate", *table.headings[1:-1], "what was compared"), rows)


def _whence(results: Results) -> str:
    """Return where the columns come from, where that is not one and the same run."""
    measurement = results.measurement
    if measurement is None or not results.is_speedup_measured:
        return ""
    return (
        "\n\nSpeedup and efficiency were measured in short blocks of optimizer steps with the cells taking turns "
        f"({measurement.scaling} scaling); seconds and tokens are those of the one training of each cell."
    )


def _speedups(results: Results) -> str:
    rows = [
        (
            cell.cell,
            str(cell.world_size),
            f"{cell.seconds_per_epoch:.2f}",
            f"{cell.whole.tokens_per_second:,.0f}",
            "n/a" if cell.speedup is None else f"{cell.speedup:.2f}",
            *([_interval(cell)] if results.is_speedup_measured else []),
            "n/a" if cell.parallel_efficiency is None else f"{cell.parallel_efficiency:.0%}",
            "baseline" if cell.is_baseline else cell.standing.state,
        )
        for cell in results.cells
    ]
    interval = ["95 % interval"] if results.is_speedup_measured else []
    titles = (
        "cell",
        "ranks",
        "seconds per epoch",
        "tokens per second",
        "speedup",
        *interval,
        "parallel efficiency",
        "gates",
    )
    return _table(titles, rows)


def _interval(cell: CellResults) -> str:
    speedup = cell.measured_speedup
    return "n/a" if speedup is None else f"{speedup.low:.2f} to {speedup.high:.2f}"


def _source(facts: SourceFacts) -> str:
    commit = f" at `{facts.commit}`" if facts.commit else ""
    licence = f" (licence: {facts.license})" if facts.license else ""
    return f"`{facts.source}`{commit}: {facts.label}{licence}"


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = tuple(titles)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(_plain(text) for text in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Return the text on one line, without what would end a table's cell or open an HTML tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
