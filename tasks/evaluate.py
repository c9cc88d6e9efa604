"""Stage `evaluate`: the base model and every cell's last checkpoint on the held-out rows.

Every model is evaluated in fp32, whatever precision it was trained in, so that only the weights differ. What was found
of a model stays in .work/evaluation/ under the digest of everything that it depends on: another cell or range evaluates
only what is new, and the base model once.
"""

import importlib.metadata
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tasks.evaluating.heldout_rows import compute_sums, continue_rows
from tasks.inputs.damage import remove_damaged, require_digest, require_whole
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.machine.facts import PACKAGES
from tasks.machine.gpu_facts import open_gpus
from tasks.measuring.versions import list_versions
from tasks.params import Params
from tasks.params.choices import has_labels
from tasks.process.failure import DataError, DivergedError, exit_with_one_line
from tasks.records.evaluation import (
    EvaluatedEpoch,
    EvaluatedModel,
    EvaluatedSample,
    EvaluationFile,
    FoundFile,
    compute_perplexity,
)
from tasks.records.manifests import BaseModelManifest, SliceManifest, SlicesManifest
from tasks.records.run import RunFile, SegmentReceipt, read_receipt
from tasks.records.stage_file import StageFile
from tasks.store.kept import fill_folder, keep, read_kept
from training.process.files import digest_json


@dataclass(frozen=True, kw_only=True)
class ModelToEvaluate:
    """One model to be evaluated."""

    name: str
    """`base`, or the name of the cell that trained it."""
    checkpoint: Path | None
    """The cell's checkpoint; None for the base model."""
    weights_digest: str
    """sha256 of the weights."""
    segment: tuple[str, int] | None = None
    """The range and epoch after which the weights were so; None for the base model and a cell's last weights."""

    @property
    def title(self) -> str:
        """What messages call it; the name comes first."""
        return self.name if self.segment is None else f"{self.name} after {self.segment[0]} epoch {self.segment[1]}"


STORE = Path(".work/evaluation")
Found = TypeVar("Found", bound=StageFile)


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HeldoutRows:
    """The held-out rows, and how they are read."""

    folder: Path
    seq_len: int
    """Tokens of a row at most; longer rows are cut."""
    vocab_size: int | None
    """Of a model that gives logits for every position; None for others."""
    eos_token_id: int | None
    base_model: Path
    """The folder whose tokenizer made the tokens."""
    workload: str
    snapshot: Snapshot = field(default_factory=lambda: Snapshot(None))


def evaluate(subject: ModelToEvaluate, rows: HeldoutRows) -> FoundFile:
    """Return the model's loss (nats per label, every label counted once) and what else its workload measures.

    Where that is nothing: perplexity, and samples if the model can write.
    """
    import torch

    from training.model.weights import compute_parameter_checksum
    from training.workloads import find_workload

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = find_workload(rows.workload)
    started = time.perf_counter()
    try:
        model = workload.load_model(rows.base_model, checkpoint=subject.checkpoint).to(device).eval()
        checksum = compute_parameter_checksum(model)
        source: Any = workload.open_slice(rows.folder)
    except (OSError, ValueError) as error:
        raise DataError(f"{subject.name}: {error}") from None
    with torch.inference_mode():
        sums, counts = compute_sums(
            source, model, workload, seq_len=rows.seq_len, vocab_size=rows.vocab_size,
            what=f"evaluating {subject.title}",
        )  # fmt: skip
        samples = []
        if not workload.HAS_LABELS and hasattr(model, "generate") and rows.eos_token_id is not None:
            samples = continue_rows(model, source, base_model=rows.base_model, eos_token_id=rows.eos_token_id)
    means = {name: value / counts["num_targets"] for name, value in sums.items()}
    loss = means.pop("loss")
    if not math.isfinite(loss):
        raise DivergedError(f"{subject.title}: loss on the held-out rows is {loss}; train with a lower learning rate")
    seconds = time.perf_counter() - started
    accuracies = {name.replace("correct", "accuracy"): mean for name, mean in means.items()}
    seen = "".join(f", {name} {value:.4f}" for name, value in accuracies.items())
    what = f"{subject.title}: loss {loss:.4f}{seen}"
    _log.info("%s on %d %ss, in fp32 on %s, %.1f s", what, counts["num_tokens"], workload.UNIT, device, seconds)
    more: dict[str, Any] = {**accuracies, **counts, "rows_digest": SliceManifest.read(rows.folder).digest}
    if not workload.HAS_LABELS:
        more |= {"perplexity": compute_perplexity(loss), "samples": samples}
        more["num_targets"] = counts["num_targets"] if workload.HAS_PROMPTS else None
    return FoundFile(loss=loss, parameter_checksum=checksum, **more)


def list_evaluation_inputs(subject: ModelToEvaluate, rows: HeldoutRows) -> dict[str, Any]:
    """Return everything that the figures of a model depend on."""
    # torch is not imported for it, which takes longer than all else where everything is reused.
    with open_gpus() as gpus:
        device = "cuda" if gpus.handles else "cpu"
    return {
        "base_model": BaseModelManifest.read(rows.base_model).digest,
        "weights": subject.weights_digest,
        "rows": SliceManifest.read(rows.folder).digest,
        "seq_len": rows.seq_len,
        "workload": rows.workload,
        "added_up_by": {
            "device": device,
            **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        },
        "found": "figures",
        "versions": list_versions(),
    }


def _evaluate_or_reuse(subject: ModelToEvaluate, rows: HeldoutRows) -> FoundFile:
    what, depends_on = f"{subject.title}: evaluated", list_evaluation_inputs(subject, rows)
    return reuse_or_make(what, FoundFile, depends_on, lambda: evaluate(subject, rows), rows.snapshot)


def _checkpoint_of(subject: ModelToEvaluate, runs: Path) -> str | None:
    return None if subject.checkpoint is None else str(subject.checkpoint.relative_to(runs / subject.name))


def _main() -> None:
    # Threads of torch that wait by running in circles take a core each from whoever else is on the machine, and on one
    # that others use an evaluation takes many times as long. Read when torch is imported, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = make_parser("evaluate", __doc__, "slices", "base-model", "runs", "evaluation").parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    manifest, adapter = SlicesManifest.read(arguments.slices), params.train.adapter
    rows = HeldoutRows(
        folder=arguments.slices / params.heldout_name,
        seq_len=params.train.seq_len,
        vocab_size=manifest.vocab_size,
        eos_token_id=manifest.eos_token_id,
        base_model=arguments.base_model,
        workload=params.workload,
        snapshot=snapshot,
    )
    require_whole(rows.folder)
    subjects = list_subjects(params, base_model=rows.base_model, runs=arguments.runs)
    results = {subject.name: _evaluate_or_reuse(subject, rows) for subject in subjects}
    base, num_trained = results["base"], None
    if adapter is not None:
        from tasks.equivalence.reference.adapter import count_factors
        from training.workloads import find_workload

        num_trained = count_factors(find_workload(rows.workload).load_model(rows.base_model), adapter.model_dump())
    epochs: dict[str, list[EvaluatedEpoch]] = {}
    # In the order of training.
    for subject in list_epoch_subjects(params, runs=arguments.runs) if has_labels(rows.workload) else ():
        assert subject.segment is not None
        part, epoch = subject.segment
        figures, checkpoint = _evaluate_or_reuse(subject, rows).figures(), str(_checkpoint_of(subject, arguments.runs))
        item = EvaluatedEpoch(**figures, range=part, epoch=epoch, checkpoint=checkpoint)
        epochs.setdefault(subject.name, []).append(item)
    evaluation = EvaluationFile(
        heldout=params.heldout_title,
        num_rows=SliceManifest.read(rows.folder).num_rows,
        num_tokens=base.num_tokens,
        seq_len=rows.seq_len,
        num_trained=num_trained,
        models={
            subject.name: EvaluatedModel(
                **results[subject.name].figures(), checkpoint=_checkpoint_of(subject, arguments.runs)
            )
            for subject in subjects
        },
        samples=[
            EvaluatedSample(
                row_id=sample.row_id,
                prompt=sample.prompt,
                reference=sample.reference,
                continuations={name: result.samples[index].continuation for name, result in results.items()},
            )
            for index, sample in enumerate(base.samples)
        ],
        epochs=epochs,
    )
    snapshot.require_unchanged()
    evaluation.write(arguments.evaluation)


def reuse_or_make(
    what: str, kind: type[Found], depends_on: dict[str, Any], make: Callable[[], Found], snapshot: Snapshot
) -> Found:
    """Return what was kept of the same dependencies, versions and environment, or make it; `what` is logged."""
    versions = {name: importlib.metadata.version(name) for name in (*PACKAGES, "tokenizers")}
    folder = STORE / digest_json({**depends_on, "versions": versions, "environment": snapshot.environment})
    if kept := read_kept(folder, kind):
        _log.info("%s before, on these rows and with this code", what)
        return kept
    result = make()
    snapshot.require_unchanged()
    with fill_folder(folder) as new:
        keep(result, new)
    return result


def list_subjects(params: Params, *, base_model: Path, runs: Path) -> list[ModelToEvaluate]:
    """Return the base model and every cell's last checkpoint.

    Raises DataError (exit code 3) if one is missing or is not, byte for byte, what its manifest or receipt says.
    """
    require_whole(base_model)
    digest = BaseModelManifest.read(base_model).digest
    files = {cell: runs / cell / RunFile.read(runs / cell).final_checkpoint for cell in params.cells}
    base = ModelToEvaluate(name="base", checkpoint=None, weights_digest=digest)
    return [base, *(_make_subject(cell, file) for cell, file in files.items())]


def list_epoch_subjects(params: Params, *, runs: Path) -> list[ModelToEvaluate]:
    """Return all cells' checkpoints after every segment, in order; raises DataError as above."""
    subjects = []
    for cell in params.cells:
        folder = runs / cell
        for part in RunFile.read(folder).segments:
            file = folder / part.folder / f"{params.model.name}_{part.range}-epoch-{part.epoch}.pt"
            subjects.append(_make_subject(cell, file, segment=(part.range, part.epoch)))
    return subjects


def _make_subject(cell: str, file: Path, *, segment: tuple[str, int] | None = None) -> ModelToEvaluate:
    try:
        files = read_receipt(file.parent).files
    except DataError as error:
        raise remove_damaged(SegmentReceipt.path_in(file.parent), f"cannot be used ({error})") from None
    promised = files.get(file.name)
    digest = require_digest(file, promised.sha256 if promised else None)
    return ModelToEvaluate(name=cell, checkpoint=file, weights_digest=digest, segment=segment)


if __name__ == "__main__":
    exit_with_one_line(_main, name="evaluate")
