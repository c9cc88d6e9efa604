"""Stage `slice`: every range and the held-out rows, once, as arrays that can be memory-mapped.

A finished slice stays in .work/slices/ under the digest of what went into it: one more range makes only that one.
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from tasks.data.slicing import Slicer, find_slicing
from tasks.data.sources.row_policy import describe_faults
from tasks.inputs.damage import require_digest
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.params import Params
from tasks.params.choices import read_unit
from tasks.params.sources import RowRange
from tasks.process.failure import ConfigurationError, DataError, exit_with_one_line
from tasks.records.facts import SliceFacts
from tasks.records.manifests import HELDOUT, ROWS, RawManifest, SliceManifest, SlicesManifest
from tasks.store.kept import fill_folder, is_kept, link_folder
from training.process.files import digest_file, digest_json

_log = logging.getLogger(__name__)

_STORE = Path(".work/slices")


def check_extent(params: Params, num_rows: int) -> None:
    """Raise ConfigurationError if a slice ends beyond the data set's `num_rows` rows."""
    if params.num_rows_needed > num_rows:
        raise ConfigurationError(
            f"params.yaml: ranges and heldout: row {params.num_rows_needed} is beyond the {num_rows} rows of "
            f"{params.dataset.source}; allowed: 0-{num_rows}"
        )


def store_slice(part: RowRange, rows: Slicer, *, unit: str = "token") -> Path:
    """Return the folder of the slice's arrays and manifest, made only if it is not stored whole yet.

    Raises DataError if no row of it is left to train on.
    """
    key = digest_json({**rows.identity, "range": str(part), "rows": rows.digest_rows(part)})
    folder = _STORE / key[:32]
    if is_kept(folder):
        _log.info("slice %s: reused, nothing that it is made of has changed", part)
        return folder
    with fill_folder(folder) as new:
        facts = rows.write(part, new)
        if (labels := new / "labels.npy").exists():
            counts = np.bincount(np.load(labels), minlength=len(facts["class_names"])).tolist()
            named = zip(facts["class_names"], counts, strict=True)
            facts["class_counts"] = {name: count for name, count in named if count}
        files = {file.name: digest_file(file) for file in sorted(new.glob("*.npy"))}
        manifest = SliceManifest(range=str(part), digest=digest_json(files), files=files, **facts)
        manifest.write(new)
    _log.info("slice %s: made of %d rows, %d %ss", part, manifest.num_rows, manifest.num_tokens, unit)
    if manifest.quarantined:
        _log.warning("slice %s: left out %s", part, describe_faults(manifest.quarantined))
    return folder


def write_slices(params: Params, *, raw: Path, base_model: Path, slices: Path) -> None:
    """Fill `slices` with every range and the held-out rows, as hard links into the store."""
    check_extent(params, pq.read_metadata(raw / ROWS).num_rows)
    slicing, unit, about = find_slicing(params.workload), read_unit(params.workload), RawManifest.read(raw)
    rows = slicing.open_rows(params, raw=raw, base_model=base_model)
    of_heldout = rows
    if params.dataset.heldout_source:
        of_heldout = slicing.open_rows(params, raw=raw / HELDOUT, base_model=base_model)
    stored = {str(part): store_slice(part, rows, unit=unit) for part in params.ranges}
    stored[params.heldout_name] = store_slice(params.heldout, of_heldout, unit=unit)
    manifests: dict[str, SliceFacts] = {name: SliceManifest.read(folder) for name, folder in stored.items()}
    _check_classes(manifests, heldout=params.heldout_name)
    shutil.rmtree(slices, ignore_errors=True)
    for name, folder in stored.items():
        link_folder(folder, slices / name)
    SlicesManifest(
        workload=params.workload,
        class_names=about.class_names,
        made_of=about.made_of,
        slices=manifests,
        heldout=params.heldout_name,
        **rows.about,
    ).write(slices)


def _check_classes(slices: Mapping[str, SliceFacts], *, heldout: str) -> None:
    """Raise DataError for held-out rows of a class that no range has; warn of a slice that has a single one."""
    trained = {name for part, result in slices.items() if part != heldout for name in result.class_counts}
    for part, outcome in slices.items():
        if len(outcome.class_counts) == 1:
            _log.warning("slice %s: all its rows are of the class %s", part, *outcome.class_counts)
    if unknown := sorted(set(slices[heldout].class_counts) - trained):
        raise DataError(
            f"heldout {heldout}: {slices[heldout].class_counts[unknown[0]]} rows are of the class {unknown[0]!r}, "
            f"which no row of ranges is; allowed: {', '.join(sorted(trained)[:10])}; choose other rows, or shuffle "
            "a file that is sorted by class"
        )


def _main() -> None:
    arguments = make_parser("slice", __doc__, "raw", "base-model", "slices").parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs, arguments.params)
    for raw in (arguments.raw, *[arguments.raw / HELDOUT] * bool(params.dataset.heldout_source)):
        require_digest(raw / ROWS, RawManifest.read(raw).rows_sha256)
    write_slices(params, raw=arguments.raw, base_model=arguments.base_model, slices=arguments.slices)
    snapshot.require_unchanged()


if __name__ == "__main__":
    exit_with_one_line(_main, name="slice")
