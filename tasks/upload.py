"""Stage `upload`, always last: what is published of a comparison, staged in a folder and sent to the Hub if asked.

Staging is rebuilt each time, by hard links. The receipt is written last: a stage that could not publish is not
done, and its next run sends what is missing.
"""

import logging
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.params import Params
from tasks.params.choices import has_labels, read_unit
from tasks.process.failure import ConfigurationError, DataError, exit_with_one_line
from tasks.records.run import PublicationManifest, RunFile, UploadFile, read_receipt
from tasks.reporting.document import Revision, collect_metrics, render_model_card
from tasks.reporting.results import read_results
from tasks.services import publishing
from tasks.services.hub_calls import has_token
from tasks.store.kept import link_file
from training.process.failure import BadCheckpointError
from training.process.files import digest_file

_log = logging.getLogger(__name__)

# What is taken from the base model as it is; weights and config come from the trained model.
_TOKENIZER_SUFFIXES = (".json", ".jinja", ".model", ".txt")
_NOT_TOKENIZER = (PublicationManifest.NAME, "config.json", "model.safetensors.index.json")

_REVISIONS = "revisions"
"""Folder of the staged branches, beside what main gets."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the parts of a publication come from."""

    base_model: Path
    """Folder of the base model."""
    runs: Path
    """Folder with one folder per trained cell."""
    reports: Path
    """Folder with the finished report."""


def select_published_cell(params: Params, runs: Path) -> str:
    """Return the cell whose weights are published: upload.cell, else the last one of params.yaml that was trained."""
    cells = list(params.cells) if params.upload.cell is None else [params.upload.cell]
    for cell in reversed(cells):
        if RunFile.path_in(runs / cell).is_file():
            return cell
    raise DataError(f"{runs}: no finished run of the cells {', '.join(cells)}; run `dvc repro` first")


def stage_publication(params: Params, sources: Sources, staged: Path) -> PublicationManifest:
    """Fill the folder `staged` with exactly what is published, and return its manifest.

    Raises DataError if a part is missing or is not what its receipt says.
    """
    shutil.rmtree(staged, ignore_errors=True)
    facts = RunFile.read(sources.runs / select_published_cell(params, sources.runs))
    wanted = list(params.upload.checkpoints)
    if params.upload.checkpoints == "last":
        wanted = [Path(facts.final_checkpoint).name]
    elif params.upload.checkpoints == "all":
        wanted = [f"{facts.model_name}_{part.range}-epoch-{part.epoch}.pt" for part in facts.segments]
    return _stage(params, sources, staged, checkpoint=facts.final_checkpoint, wanted=wanted)


def stage_revisions(params: Params, sources: Sources, staged: Path) -> dict[str, PublicationManifest]:
    """Fill a folder below `staged` for each branch that is published, in the order of training; return the manifests.

    Raises as stage_publication does.
    """
    facts, manifests = RunFile.read(sources.runs / select_published_cell(params, sources.runs)), {}
    for segment in facts.segments if params.upload.revisions != "none" else ():
        name = f"{segment.range}-epoch-{segment.epoch}"
        branch = f"epoch-{segment.epoch}" if len(params.ranges) == 1 else name
        name = f"{facts.model_name}_{name}.pt"
        manifests[branch] = _stage(
            params, sources, staged / _REVISIONS / branch, checkpoint=f"{segment.folder}/{name}", wanted=[name],
            revision=Revision(branch, segment.range, segment.epoch),
        )  # fmt: skip
    return manifests


def _stage(
    params: Params,
    sources: Sources,
    staged: Path,
    *,
    checkpoint: str,
    wanted: list[str],
    revision: Revision | None = None,
) -> PublicationManifest:
    """Fill the folder with the weights of a checkpoint, the `wanted` ones beside them, report and card."""
    cell = select_published_cell(params, sources.runs)
    run = sources.runs / cell
    results = read_results(sources.reports / "results.json")
    reported = next((result for result in results.cells if result.cell == cell), None)
    if reported is None:
        raise DataError(f"{sources.reports / 'results.json'}: does not know cell {cell}; run `dvc repro report`")
    _log.info("cell %s: publishing %s", cell, checkpoint)
    staged.mkdir(parents=True)
    receipts = _link_checkpoints(run, checkpoint, wanted, staged)
    checksum = _write_model(params.workload, sources.base_model, run / checkpoint, staged)
    # The report must not be of a training that ended with other weights than those that are published.
    is_final, other = checkpoint == reported.final_checkpoint, None
    if revision is None and not is_final:
        other = f"the report is of {reported.final_checkpoint}"
    elif is_final and reported.final_parameter_checksum not in (None, checksum):
        other = (
            f"its weights ({checksum[:12]}) are not those that the report is of "
            f"({str(reported.final_parameter_checksum)[:12]})"
        )
    if other:
        raise DataError(f"{checkpoint}: {other}: {cell} was trained again since; run `dvc repro`")
    for file in sorted(sources.base_model.iterdir()):
        if file.is_file() and file.suffix in _TOKENIZER_SUFFIXES and file.name not in _NOT_TOKENIZER:
            link_file(file, staged / file.name)
    required = [sources.reports / name for name in ("index.html", "report.md", "results.json")]
    required += sorted((sources.reports / "charts").glob("*.svg"))  # report.md shows them
    beside = [sources.reports / name for name in ("epochs.csv", "losses.csv", "blocks.parquet")]
    for part in [*required, *beside, *sorted((sources.reports / "timelines").glob("*"))]:
        if part.is_file():
            link_file(part, staged / "report" / part.relative_to(sources.reports))
        elif part in required:
            raise DataError(f"{part}: missing; run `dvc repro report`")
    model, dataset = results.comparison.model, results.comparison.dataset
    heldout = params.dataset.of_heldout or params.dataset
    is_heldout_there = dataset.commit is not None and not str(params.dataset.heldout_source).startswith("path:")
    body = render_model_card(
        results, cell=cell, repo_id=params.upload.repo_id, checkpoints=[Path(path).name for path in receipts],
        revision=revision,
    )  # fmt: skip
    task = "text-classification" if has_labels(params.workload) else "text-generation"
    model_id, rows = _find_hub_id(model.source), _find_hub_id(dataset.source)
    base_model = None if model.is_random_weights else model_id
    card = publishing.make_model_card(
        body,
        task="image-classification" if read_unit(params.workload) == "image" else task,
        metrics=collect_metrics(results, cell, revision),
        evaluated_on={
            "dataset_type": rows or "local",
            "dataset_name": f"{dataset.label}, held-out rows {results.quality.heldout}",
            "dataset_split": heldout.split if is_heldout_there else None,
            "dataset_revision": dataset.commit if is_heldout_there else None,
        },
        source=params.upload.repo_id,
        model_name=f"{params.name}-{cell}",
        base_model=base_model,
        base_model_relation=base_model and "finetune",
        datasets=rows and [rows],
        language=dataset.languages or None,
        license=model_id and model.license,
        tags=["ddp-compare", params.workload],
    )
    (staged / "README.md").write_text(card, encoding="utf-8")
    manifest = PublicationManifest.describe(staged, comparison=params.name, cell=cell, final=checkpoint)
    manifest.write(staged)
    for path, sha256 in receipts.items():
        _require_equal(path, manifest.files[path].sha256, sha256)
    return manifest


def _link_checkpoints(run: Path, checkpoint: str, wanted: list[str], staged: Path) -> dict[str, str]:
    """Link the wanted semantic checkpoints and return path -> sha256, as their receipts say.

    Raises DataError if one of them is missing, or if the one of which the published weights are made is or differs.
    """
    receipts = {}
    final = run / checkpoint
    if not final.is_file():
        raise DataError(f"{run / 'run.json'}: no file {checkpoint}; run `dvc repro` to restore it")
    for segment in RunFile.read(run).segments:
        folder = run / segment.folder
        receipt = read_receipt(folder).files
        for file in sorted(folder.glob("*-epoch-*.pt")):
            sha256 = receipt[file.name].sha256
            if file.name in wanted:
                link_file(file, staged / "checkpoints" / file.name)
                receipts[f"checkpoints/{file.name}"] = sha256
            elif file == final:
                _require_equal(file.name, digest_file(file), sha256)
    missing = [name for name in wanted if f"checkpoints/{name}" not in receipts]
    if missing:
        raise DataError(f"{run / 'run.json'}: no checkpoint {missing[0]} of upload.checkpoints; run `dvc repro`")
    return receipts


def _require_equal(path: str, text: str, wanted: str) -> None:
    if text != wanted:
        raise DataError(f"{path}: sha256 {text} is not {wanted} of its receipt; delete data/runs and run `dvc repro`")


def _write_model(workload: str, base_model: Path, checkpoint: Path, staged: Path) -> str:
    """Write config and safetensors of the checkpoint, tied weights once; return the checksum of its parameters."""
    from safetensors.torch import save_model  # here: seconds, which a missing token need not cost
    from transformers import AutoConfig, GenerationConfig

    from training.model.weights import compute_parameter_checksum, without_deepspeed
    from training.workloads import find_workload

    try:
        model: Any = find_workload(workload).load_model(base_model, checkpoint=checkpoint)
    except BadCheckpointError as error:
        raise DataError(f"{error}; delete its run and run `dvc repro`") from None
    checksum = compute_parameter_checksum(model)
    if not hasattr(model, "save_pretrained"):
        save_model(model, str(staged / "model.safetensors"))
        # safetensors lets only the owner read what it writes.
        (staged / "model.safetensors").chmod(0o644)
        link_file(base_model / "config.json", staged / "config.json")
        return checksum
    # Training switches the cache off; generation by the published model wants what the base model had.
    model.config.use_cache = getattr(AutoConfig.from_pretrained(base_model, trust_remote_code=False), "use_cache", True)
    # The base model's own file is linked later; saving it would refuse the odd ones that many models have.
    model.generation_config = GenerationConfig.from_model_config(model.config)
    with without_deepspeed():
        model.save_pretrained(staged)
    return checksum


def _find_hub_id(source: str) -> str | None:
    return source.removeprefix("hub:") if source.startswith("hub:") else None


def _main() -> None:
    parser = make_parser("upload", __doc__, "base-model", "runs", "reports", "staged", "receipt")
    parser.add_argument("--dry-run", action="store_true", help="only list the files and their sizes")
    arguments, unknown = parser.parse_known_args()
    if unknown:  # argparse would print them, and somebody may have given a token
        raise ConfigurationError(f"{len(unknown)} unknown arguments; see --help; a token is read from HF_TOKEN only")
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    sources = Sources(base_model=arguments.base_model, runs=arguments.runs, reports=arguments.reports)
    repo_id = params.upload.repo_id
    if arguments.dry_run:
        with tempfile.TemporaryDirectory(prefix=".dry-run-", dir=arguments.reports) as folder:
            manifest = stage_publication(params, sources, Path(folder) / "hub")
            revisions = stage_revisions(params, sources, Path(folder) / "hub")
        lines = [f"{file.num_bytes:>14,}  {path}" for path, file in manifest.files.items()]
        target = repo_id or "the Hub, if upload.repo_id were set"
        lines.append(f"dry run: {manifest.extent} would be published to {target}")
        lines += [f"dry run: {item.extent} would be its branch {branch}" for branch, item in revisions.items()]
        sys.stdout.write("\n".join(lines) + "\n")
        return
    if repo_id is not None and not has_token():
        raise ConfigurationError(
            f"upload.repo_id: got {repo_id}, but there is no token; set HF_TOKEN or run `hf auth login`, "
            "or set upload.repo_id: null to publish nothing. The comparison itself is finished: see reports/"
        )
    staged: Path = arguments.staged
    manifest = stage_publication(params, sources, staged)
    revisions = stage_revisions(params, sources, staged)
    snapshot.require_unchanged()
    if repo_id is None:
        beside = f", and {len(revisions)} revisions" if revisions else ""
        sys.stdout.write(f"nothing published; {manifest.extent} staged in {staged}{beside}\n")
        receipt = UploadFile(
            status="staged", cell=manifest.cell, num_files=len(manifest.files), revisions=dict.fromkeys(revisions)
        )
    else:
        arguments.receipt.unlink(missing_ok=True)  # of the Hub as it was until now
        receipt = _publish(params, repo_id, staged, manifest, list(revisions))
    receipt.write(arguments.receipt)


def _publish(
    params: Params, repo_id: str, staged: Path, manifest: PublicationManifest, revisions: list[str]
) -> UploadFile:
    """Send the branches, and last the final weights: a new branch begins with what the repository held before them."""
    commits: dict[str, str | None] = {}
    for branch in (*revisions, publishing.MAIN_BRANCH):
        is_main = branch == publishing.MAIN_BRANCH
        message = f"{params.name}: cell {manifest.cell}" + f", {branch}" * (not is_main)
        folder = staged if is_main else staged / _REVISIONS / branch
        sent = publishing.publish(folder, repo_id, is_private=params.upload.private, message=message, branch=branch)
        what = f"published {sent.num_sent} files as" if sent.num_sent else "nothing changed, nothing sent:"
        _log.info("%s %s", what, sent.url)
        commits[branch] = sent.commit
    return UploadFile(
        status="published", repo_id=sent.repo_id, commit=commits.pop(publishing.MAIN_BRANCH), url=sent.url,
        cell=manifest.cell, num_files=len(manifest.files), revisions=commits,
    )  # fmt: skip


if __name__ == "__main__":
    exit_with_one_line(_main, name="upload")
