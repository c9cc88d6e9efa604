"""Stage `download`: data set and base model, from the Hub, a local path or the built-in ones.

What has arrived stays in .work/download/, outside DVC, which deletes outputs before it runs a stage.
"""

import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tasks.data.builtin.corpus import read_package_versions
from tasks.data.fitness import check_fitness
from tasks.data.sources.image_models import store_image_model
from tasks.data.sources.image_rows import collect_image_facts, store_images
from tasks.data.sources.models import count_bytes, store_model
from tasks.data.sources.row_policy import describe_faults, describe_tokenised
from tasks.data.sources.row_store import MAX_CLASSES, RepeatedRows, place_rows, store_rows
from tasks.inputs.snapshot import Snapshot, make_parser, select_sources
from tasks.params import Params
from tasks.params.local_files import digest_source, has_splits
from tasks.params.prompts import FILE, read_template
from tasks.params.sources import DatasetParams, Source
from tasks.process.bounded_child import BoundedChild
from tasks.process.failure import DataError, exit_with_one_line
from tasks.records.manifests import HELDOUT, ROWS, RawManifest, SourcesFile
from tasks.services.hub import pin_commit
from tasks.store.kept import link_file, link_folder
from training.process.files import digest_file

_log = logging.getLogger(__name__)


def download_rows(
    params: Params,
    raw: Path,
    *,
    source_digest: str | None,
    heldout_digest: str | None = None,
    child: BoundedChild | None = None,
) -> None:
    """Fill `raw` with rows.parquet, up to the last row that a slice names, and manifest.json.

    The digests are those of local sources when the run began. Held-out rows with a source of their own go to its folder
    `heldout`, in the same way; `child` reads texts. Raises DataError for classes among them that no row to be trained
    on has.
    """
    dataset, other = params.dataset, params.dataset.of_heldout
    repeated = RepeatedRows(None if other else params.heldout)
    place = partial(_place_rows, repeated=repeated, child=child)
    manifest = place(dataset, params.num_rows_needed, raw, source_digest=source_digest)
    if dataset.label is not None and not 2 <= len(manifest.class_names) <= MAX_CLASSES:
        raise DataError(
            f"dataset.label: the rows have {len(manifest.class_names)} classes; allowed: 2 to {MAX_CLASSES:,}; choose "
            "another column or other ranges"
        )
    if other is not None:
        repeated.begin_heldout(params.heldout)
        part = place(other, params.heldout.end, raw / HELDOUT, source_digest=heldout_digest)
        if unknown := set(part.class_names) - set(manifest.class_names):
            raise DataError(
                f"{other.place}: has rows of the class {min(unknown)!r}, which no row of {dataset.source} has; "
                f"allowed: {', '.join(manifest.class_names[:10])}"
            )
        _finish(part.model_copy(update={"class_names": manifest.class_names}), raw / HELDOUT)
    more = {"heldout_source": dataset.heldout_source, "made_of": select_sources(params)}
    _finish(manifest.model_copy(update={**repeated.count(), **more}), raw)


def _place_rows(
    dataset: DatasetParams,
    num_rows: int,
    raw: Path,
    *,
    repeated: RepeatedRows,
    source_digest: str | None,
    child: BoundedChild | None,
) -> RawManifest:
    """Have the first rows of a data set, of images all rows, in `raw`; return what is to be said of them."""
    is_builtin, commit = dataset.kind == "builtin", _find_commit(dataset, "dataset")
    if dataset.holds_images:
        stored = store_images(dataset)
    else:
        stored = store_rows(dataset, num_rows, commit=commit, child=child)
    _require_unchanged(dataset, source_digest, stored.source_digest)
    more: dict[str, Any] = {}
    if dataset.holds_images:
        facts = collect_image_facts(stored, num_rows, repeated=repeated, source=dataset.source)
        _clear(raw)
        link_file(stored.file, raw / ROWS)
        if is_builtin:
            more = {"license": "CC BY 4.0"}
    else:
        _clear(raw)
        facts = place_rows(stored, num_rows, repeated=repeated, target=raw / ROWS)
        more = {"license": stored.about.license, "languages": stored.about.languages}
        if is_builtin:
            more = {"license": "the open-source licence of each package", "languages": ["en"]}
            more["packages"] = read_package_versions()
    try:
        template = None if dataset.template is None else read_template(dataset.template)
    except ValueError as error:
        raise DataError(str(error)) from None
    return RawManifest(
        source=dataset.source,
        kind=dataset.kind,
        revision=dataset.revision,
        commit=commit,
        split=dataset.split if has_splits(dataset, Path(dataset.location)) else None,
        config=stored.about.config,
        text_column=None if dataset.holds_instructions or dataset.holds_images else dataset.text_column,
        add_special_tokens=dataset.add_special_tokens,
        template=template,
        image_size=dataset.image_size,
        label=_make_label(dataset, facts.get("class_names", [])),
        source_digest=stored.source_digest,
        **{"license": None, **facts, **more},
    )


def _require_unchanged(source: Source, *digests: str | None) -> None:
    """Raise DataError if the source was another when the run began."""
    if None not in digests and len(set(digests)) > 1:
        place = source.place if isinstance(source, DatasetParams) else f"model.source {source.source}"
        raise DataError(f"{place}: changed since this run began; run again")


def _finish(manifest: RawManifest, raw: Path) -> None:
    """Write the manifest and say what it holds."""
    manifest.model_copy(update={"rows_sha256": digest_file(raw / ROWS)}).write(raw)
    _log.info("%s: %d rows, %s", manifest.source, manifest.num_rows, manifest.label)
    if manifest.quarantined:
        _log.warning("%s: left out of every slice: %s", manifest.source, describe_faults(manifest.quarantined))
    if manifest.num_duplicate_rows:
        _log.warning(
            "%s: %d rows repeat an earlier row; %d held-out rows also stand outside the held-out slice",
            manifest.source, manifest.num_duplicate_rows, manifest.num_heldout_rows_seen,
        )  # fmt: skip


def download_model(
    params: Params, base_model: Path, *, class_names: Sequence[str] = (), child: BoundedChild | None = None
) -> None:
    """Fill `base_model` with the model's folder and its manifest.json, as hard links into the store.

    It tells these classes apart, if there are any. `child`: the process that reads it.
    """
    if params.dataset.holds_images:
        stored = store_image_model(params.model, class_names=class_names, image_size=params.dataset.image_size)
    else:
        commit = _find_commit(params.model, "model")
        stored = store_model(params.model, commit=commit, class_names=class_names, child=child)
    _clear(base_model)
    link_folder(stored, base_model)


def require_fitness(params: Params, raw: Path, base_model: Path, *, child: BoundedChild) -> None:
    """Try the model on the first rows, and note what these become; raises DataError if they cannot be trained on."""
    if params.dataset.holds_images:
        return
    num_bytes = count_bytes(base_model, params.model.model_copy(update={"weights": "pretrained"}))
    what = f"model.source {params.model.source} with {params.dataset.source}"
    result = child.run(check_fitness, params, raw, base_model, what=what, num_bytes=num_bytes)
    RawManifest.read(raw).model_copy(update={"tokenised": result}).write(raw)
    _log.info("%s: tokenised: %s", params.dataset.source, describe_tokenised(result))


def _find_commit(source: Any, kind: Any) -> str | None:
    return pin_commit(source.location, source.revision, kind=kind) if source.kind == "hub" else None


def _make_label(dataset: DatasetParams, class_names: Sequence[str]) -> str:
    name = Path(dataset.location).name if dataset.kind == "path" else dataset.location
    classes = f", {len(class_names)} classes" * bool(class_names)
    if dataset.holds_images:
        name = "scikit-learn's digits (built-in)" if dataset.kind == "builtin" else name
        return f"{name}{classes}, {dataset.image_size} x {dataset.image_size} pixels"
    classes += f" of column {dataset.label}" * bool(classes)
    if dataset.kind == "builtin":
        what = "instructions made of docstrings" if dataset.holds_instructions else "docstrings"
        return f"{what} of the installed packages (built-in){classes}"
    if dataset.holds_instructions:
        return f"{name}, instructions with responses, as prompts of the template {dataset.template}"
    return f"{name}, column {dataset.text_column}{classes}"


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _main() -> None:
    arguments = make_parser("download", __doc__, "sources", "raw", "base-model").parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    begun = SourcesFile.read(arguments.sources)
    with BoundedChild() as child:
        download_rows(
            params, arguments.raw, source_digest=begun.dataset.digest if begun.dataset else None,
            heldout_digest=begun.heldout.digest if begun.heldout else None, child=child,
        )  # fmt: skip
        class_names = RawManifest.read(arguments.raw).class_names
        download_model(params, arguments.base_model, class_names=class_names, child=child)
        require_fitness(params, arguments.raw, arguments.base_model, child=child)
    template = params.dataset.template or ""
    if begun.template is not None and digest_source(Path(template.removeprefix(FILE))) != begun.template.digest:
        raise DataError(f"dataset.template {template}: changed since this run began; run again")
    named = ((params.dataset, begun.dataset), (params.dataset.of_heldout, begun.heldout), (params.model, begun.model))
    for source, was in named:
        if source is not None and was is not None:
            _require_unchanged(source, was.digest, digest_source(Path(source.location)) or "")
    snapshot.require_unchanged()


if __name__ == "__main__":
    exit_with_one_line(_main, name="download")
