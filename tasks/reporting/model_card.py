"""The model card of a published comparison: the report's own blocks, and how to load what was published.

Its metadata is added in tasks/services/publishing.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.process import wording
from tasks.reporting.blocks import Block, Code, Document, Facts, Items, PageSection, Table
from tasks.reporting.cell_results import CellResults
from tasks.reporting.markdown import render_markdown
from tasks.reporting.quality import EpochAccuracy, ModelQuality
from tasks.reporting.results import Results
from tasks.reporting.sections import compared, gates, make_section, measured, quality, speed, verdict


@dataclass(frozen=True)
class Revision:
    """The weights after one segment, where they stand in a branch of their own."""

    branch: str
    range: str
    epoch: int


def render_model_card(
    results: Results,
    *,
    cell: str,
    repo_id: str | None,
    checkpoints: Sequence[str],
    revision: Revision | None = None,
) -> str:
    """Return the card's Markdown: verdict, what was trained, quality, gates, speed and files of the published cell.

    `checkpoints` are the file names of the published ones; `revision` is what is published, if not the final weights.
    No speedup or efficiency is in it that is withheld.
    """
    published = next(found for found in results.cells if found.cell == cell)
    which = "final" if revision is None else "same"
    weights = "the weights after that range and epoch, for torch.load(file, weights_only=True)"
    is_image = results.unit == "image"
    rows = [
        [
            f"model.safetensors, config.json{'' if is_image else ', tokenizer'}",
            f"the {which} weights, for {'torchvision' if is_image else 'from_pretrained'}",
        ],
        *([f"checkpoints/{name}", weights] for name in checkpoints),
        ["report/", "the whole report: index.html, report.md, and results.json for machines"],
        ["manifest.json", "size and sha256 of every file"],
    ]
    told = [
        "To be loaded, looked at and compared: the weights are what a measured training ended with. Nobody has judged "
        "whether they are fit for anything else, or what harm their answers may do.",
        *measured.tell_not_claimed(results),
    ]
    costs = [one for one in (results.cost.cells if results.cost else []) if one.cell == published.cell]
    if costs and costs[0].kwh_per_epoch is not None:
        kwh = wording.format_three_digits(costs[0].kwh_per_epoch * published.num_epochs)
        told.append(f"Its GPUs took {kwh} kWh, as measured; what that emits depends on the grid, which nobody told.")
    sections = [
        PageSection("verdict", verdict.TITLE, [verdict.make_answer(results)]),
        PageSection("use", "How to load it", [_tell_loading(results, repo_id, revision)]),
        PageSection(
            "published",
            "What is published",
            [_tell_published(results, published, revision), Table("Files", ["Path", "What it is"], rows, num_prose=1)],
        ),
        PageSection("limits", "Intended use and limits", [Items(told)]),
        make_section(compared, results),
        PageSection("quality", quality.TITLE, quality.show_models(results)),
        make_section(gates, results),
        *([] if results.is_withheld else [make_section(speed, results)]),
    ]
    return render_markdown(Document(results.name, "", results.verdict, verdict.make_lead(results), sections))


def collect_metrics(results: Results, cell: str, revision: Revision | None = None) -> dict[str, float]:
    """Return what the published weights come to on the held-out rows: loss and, where there are such, the others.

    Those of a revision are there where every epoch was evaluated.
    """
    evaluated: list[EpochAccuracy | ModelQuality]
    if revision is None:
        evaluated = [model for model in results.quality.models if model.model == cell]
    else:
        place = (cell, revision.range, revision.epoch)
        evaluated = [one for one in results.quality.epochs if (one.cell, one.range, one.epoch) == place]
    if not evaluated:
        return {}
    names = ("loss", "perplexity", "accuracy", "accuracy_top5", "accuracy_tokens")
    found = {name: getattr(evaluated[0], name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _tell_loading(results: Results, repo_id: str | None, revision: Revision | None) -> Block:
    name, title = f'"{repo_id or "OWNER/NAME"}"', "How to load it"
    if results.unit == "image":
        return Code(
            _load_network(results, name, f', revision="{revision.branch}"' if revision else ""), "python", title
        )
    kind = "AutoModelForSequenceClassification" if results.quality.is_classified else "AutoModelForCausalLM"
    name += f', revision="{revision.branch}"' if revision else ""
    code = (
        f"from transformers import {kind}, AutoTokenizer\n\n"
        f"model = {kind}.from_pretrained({name})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({name})"
    )
    return Code(code, "python", title)


def _load_network(results: Results, name: str, revision: str) -> str:
    """Return the code that builds torchvision's network and reads its weights: transformers knows nothing of it."""
    is_vit = results.comparison.model.model_type == "vit"
    build = (
        "sizes = {key: size for key, size in config.items() if isinstance(size, int)}\n"
        'model = torchvision.models.VisionTransformer(**sizes, num_classes=len(config["class_names"]))'
        if is_vit
        else 'groups = functools.partial(torch.nn.GroupNorm, config.get("num_groups"))\n'
        'norm = groups if config["norm"] == "group" else torch.nn.BatchNorm2d\n'
        'build = getattr(torchvision.models, config["model_type"])\n'
        'model = build(num_classes=len(config["class_names"]), norm_layer=norm)'
    )
    return (
        f"{'' if is_vit else 'import functools' + chr(10)}import json\n\n{'' if is_vit else 'import torch' + chr(10)}"
        "import torchvision\nfrom huggingface_hub import hf_hub_download\nfrom safetensors.torch import load_model\n\n"
        f'config = json.load(open(hf_hub_download({name}, "config.json"{revision})))\n{build}\n'
        f'load_model(model, hf_hub_download({name}, "model.safetensors"{revision}))'
    )


def _tell_published(results: Results, cell: CellResults, revision: Revision | None) -> Block:
    """Return what the report does not say of one cell alone."""
    settings = ", ".join(f"{name} {value}" for name, value in results.comparison.train.items())
    if revision is not None:
        weights = f"after epoch {revision.epoch} of {cell.num_epochs} on rows {revision.range}"
        whole = "verdict, quality, gates and speed are those of the whole training, whose last weights stand in main"
        return Facts(
            [("Cell", cell.cell), ("Weights", weights), ("Not of these weights", whole), ("Settings", settings)]
        )
    return Facts(
        [
            ("Cell", cell.cell),
            ("Optimizer steps", f"{cell.whole.num_steps:,}"),
            (f"{results.unit.capitalize()}s learned from", f"{cell.whole.num_tokens:,}"),
            ("Settings", settings),
        ]
    )
