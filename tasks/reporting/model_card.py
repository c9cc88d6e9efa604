"""The model card of a published comparison: the report's own blocks, and how to load what was published.

Its metadata is added in tasks/services/hub.py.
"""

from collections.abc import Sequence

from tasks.reporting.blocks import Block, Code, Document, Facts, PageSection, Table
from tasks.reporting.cell_results import CellResults
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results
from tasks.reporting.sections import compared, gates, make_section, quality, speed, verdict


def render_model_card(results: Results, *, cell: str, repo_id: str | None, checkpoints: Sequence[str]) -> str:
    """Return the card's Markdown: verdict, what was trained, quality, gates, speed and files of the published cell.

    `checkpoints` are the file names of the published ones. No speedup or efficiency is in it that is withheld.
    """
    published = next(found for found in results.cells if found.cell == cell)
    sections = [
        PageSection("verdict", verdict.TITLE, [verdict.make_answer(results)]),
        PageSection("use", "How to load it", [_tell_loading(repo_id, is_classifier=results.quality.is_classified)]),
        PageSection(
            "published", "What is published", [_tell_published(results, published), _tabulate_files(checkpoints)]
        ),
        make_section(compared, results),
        PageSection("quality", quality.TITLE, quality.show_models(results)),
        make_section(gates, results),
        *([] if results.is_withheld else [make_section(speed, results)]),
    ]
    return render_markdown(Document(results.name, "", results.verdict, verdict.make_lead(results), sections))


def collect_metrics(results: Results, cell: str) -> dict[str, float]:
    """Return the published cell's loss on the held-out rows and, where there are such, perplexity or accuracy."""
    found = next((model for model in results.quality.models if model.model == cell), None)
    if found is None:
        return {}
    more = {name: getattr(found, name) for name in ("perplexity", "accuracy", "accuracy_top5", "accuracy_tokens")}
    return {"loss": found.loss, **{name: value for name, value in more.items() if value is not None}}


def _tell_loading(repo_id: str | None, *, is_classifier: bool) -> Block:
    name = repo_id or "OWNER/NAME"
    kind = "AutoModelForSequenceClassification" if is_classifier else "AutoModelForCausalLM"
    code = (
        f"from transformers import {kind}, AutoTokenizer\n\n"
        f'model = {kind}.from_pretrained("{name}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")'
    )
    return Code(code, "python", "How to load it")


def _tell_published(results: Results, cell: CellResults) -> Block:
    """Return what the report does not say of one cell alone."""
    settings = ", ".join(f"{name} {value}" for name, value in results.comparison.train.items())
    return Facts(
        [
            ("Cell", cell.cell),
            ("Optimizer steps", f"{cell.whole.num_steps:,}"),
            (f"{results.unit.capitalize()}s learned from", f"{cell.whole.num_tokens:,}"),
            ("Settings", settings),
        ]
    )


def _tabulate_files(checkpoints: Sequence[str]) -> Table:
    weights = "the weights after that range and epoch, for torch.load(file, weights_only=True)"
    rows = [
        ["model.safetensors, config.json, tokenizer", "the final weights, for from_pretrained"],
        *([f"checkpoints/{name}", weights] for name in checkpoints),
        ["report/", "the whole report: index.html, report.md, and results.json for machines"],
        ["manifest.json", "size and sha256 of every file"],
    ]
    return Table("Files", ["Path", "What it is"], rows, num_prose=1)
