"""Whether the model is as good: on rows that none was trained on, and when each cell came there."""

from functools import partial

from tasks.process import wording
from tasks.records.evaluation import EvaluatedSample
from tasks.reporting.blocks import Block, Charts, Fold, Quotes, Table, Text, tabulate
from tasks.reporting.quality import ModelQuality
from tasks.reporting.results import Results
from tasks.reporting.time_to_loss import NEAR_SHARE, TimeToLoss

TITLE = "Is the model as good?"
_SHARES = {"accuracy": "Accuracy", "accuracy_top5": "Top-5 accuracy", "accuracy_tokens": "Token accuracy"}
"""Field of ModelQuality -> its column, where any model has it."""


def make_blocks(results: Results) -> list[Block]:
    """Return losses, what the models are worth, the seconds it took, and rows that every model went on from."""
    quality = results.quality
    unknown = [curve.cell for curve in results.quality.heldout_curves if not curve.losses]
    told = (
        f"{wording.join_names(unknown)}: no held-out loss in mid-training, since the segments that are trained already "
        "took no look at these rows; weights do not depend on it, so they were not trained anew."
    )
    blocks: list[Block] = [*show_models(results), Charts("quality"), *([Text(told)] * bool(unknown))]
    if quality.time_to_loss is not None:
        blocks += _tell_time_to_loss(results, quality.time_to_loss)
    if quality.epochs:
        epochs = results.quality.epochs
        rows = []
        for cell in results.cells:
            best = next(one for one in epochs if one.cell == cell.cell and one.is_best)
            last = next(one for one in epochs if one.cell == cell.cell and one.is_last)
            shown = [wording.format_optional(one.accuracy, wording.format_small_percent) for one in (best, last)]
            rows.append([cell.cell, shown[0], str(best.epoch), shown[1], best.checkpoint.rpartition("/")[2]])
        headings = ["Cell", "Best accuracy", "Best epoch", "Last accuracy", "Best checkpoint"]
        blocks.append(Table("Best and last", headings, rows, num_prose=1))
    samples = [_quote(sample) for sample in quality.samples]
    return [*blocks, *[Fold("Samples side by side", samples)] * bool(samples)]


def show_models(results: Results) -> list[Block]:
    """Return on which rows the models were evaluated, and their loss and worth there."""
    quality = results.quality
    cut = "" if results.unit == "image" else f", cut to {quality.seq_len} tokens"
    rows = f"{quality.num_rows:,} rows ({quality.heldout}) that no range overlaps{cut}; loss in {results.loss_unit}."
    return [Text(rows), _tabulate_models(results)]


def _tabulate_models(results: Results) -> Table:
    """Return loss and what else is known of the base model and of each cell's last checkpoint."""
    models = results.quality.models
    base = next((model for model in models if model.model == "base"), None)

    def compare_with_base(model: ModelQuality) -> str:
        known = None if base is None or model is base else model.loss - base.loss
        return wording.format_optional(known, lambda apart: f"{apart:+.4f}")

    return tabulate(
        "On the held-out rows",
        [
            ("Model", lambda model: _name_model(model.model)),
            ("Loss", lambda model: wording.format_loss(model.loss)),
            *[("Perplexity", lambda model: wording.format_optional(model.perplexity, wording.format_three_digits))]
            * (not results.quality.is_classified),
            *[
                (title, partial(_show_share, name=name))
                for name, title in _SHARES.items()
                if any(getattr(model, name) is not None for model in models)
            ],
            ("Against base", compare_with_base),
            ("Tokens", lambda model: wording.format_count(model.num_tokens)),
        ],
        models,
    ).replace_unit(results.unit)


def _show_share(model: ModelQuality, *, name: str) -> str:
    return wording.format_optional(getattr(model, name), wording.format_small_percent)


def _name_model(model: str) -> str:
    return "base model" if model == "base" else model


def _tell_time_to_loss(results: Results, found: TimeToLoss) -> list[Block]:
    """Return what loss the seconds lead to, and when each cell came to it."""
    which = (
        "the loss that params.yaml states"
        if found.is_stated
        else f"within {wording.format_small_percent(NEAR_SHARE)} of where {results.baseline.cell} ended"
    )
    mean = "" if found.window_steps == 1 else f", mean over {found.window_steps} steps"
    target = f"{wording.format_loss(found.target_loss)} {results.loss_unit}"
    told = f"Time to quality: until the training loss{mean} was {target} for the first time, {which}."
    if not any(cell.is_withheld for cell in results.cells):
        told += " The same training comes there at the same step, so the seconds tell the speed."
    rows = [
        [cell.cell, "never", wording.NOT_AVAILABLE] if cell.step is None or cell.train_seconds is None
        else [cell.cell, wording.format_count(cell.step), wording.format_seconds(cell.train_seconds)]
        for cell in found.cells
    ]  # fmt: skip
    title = f"To a loss of {wording.format_loss(found.target_loss)}"
    return [Text(told), Table(title, ["Cell", "Reached at step", "Seconds to it"], rows)]


def _quote(sample: EvaluatedSample) -> Quotes:
    """Return the row's beginning, how it goes on, and what the models wrote; those that wrote the same are one."""
    writers: dict[str, list[str]] = {}
    for model, text in sample.continuations.items():
        writers.setdefault(text.strip(), []).append(_name_model(model))
    written = [(wording.join_names(models), text) for text, models in writers.items()]
    texts = [("prompt", sample.prompt.strip()), ("the text itself", sample.reference.strip()), *written]
    return Quotes(f"Row {sample.row_id}", texts)
