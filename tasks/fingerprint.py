"""Stage `fingerprint`: what decides numbers - this machine, local source files, the trial.

It begins every run with a snapshot: of every other stage, what its params, its source files and its other inputs are.
Runs every time and takes about a second: torch is not imported, versions come from the installed packages' metadata.
Where there are GPUs it is asked once, in a process of its own, whether it can train on them.
"""

import argparse
import configparser
import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from tasks.inputs.snapshot import digest_sources, read_stages, select_values
from tasks.machine.facts import PACKAGES, collect_machine_facts
from tasks.machine.usable_gpus import require_usable_gpus
from tasks.measuring.versions import list_versions
from tasks.params import Params, load_params, local_files
from tasks.params.local_files import digest_source, walk_files
from tasks.params.prompts import FILE
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tasks.process.logs import SILENT, configure_logging
from tasks.records.manifests import InputsFile, MachineFile, SourceDigest, SourcesFile, TrialFile
from training.process.files import digest_file, write_json
from training.record.environment import collect_decisive_environment

_log = logging.getLogger(__name__)

_VERSIONS = Path(".work/versions.json")
_DIGESTS = Path(".work/digests.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SETTLED_NS = 2 * 10**9
"""Of a file that was written later than so long ago, another write may leave the same times."""
_OF_ROWS = (
    *PACKAGES, "datasets", "huggingface_hub", "matplotlib", "mlflow", "pandas", "pillow", "prefect", "pyarrow",
    "pydantic", "scikit-learn", "sqlalchemy", "tokenizers",
)  # fmt: skip
"""Packages that read rows, make tokens and models of them, or hold the built-in texts."""
TRIAL = "DDP_COMPARE_TRIAL"
"""Environment variable: any text that was not used before has the stage `measure` measure the speed again."""


def write_snapshots(folder: Path, params: Params) -> None:
    """Write NAME.json for every other stage of dvc.yaml: what it may work on in this run (tasks/inputs/snapshot.py)."""
    shutil.rmtree(folder, ignore_errors=True)
    of_rows = {package: importlib.metadata.version(package) for package in _OF_ROWS}
    for stage in read_stages(params):
        if stage.name == "fingerprint":
            continue
        packages = {
            package: version
            for cell in params.cells
            if {"cells", f"cells.{cell}"} & {*stage.params}
            for package, version in params.read_package_versions(cell).items()
        }
        if stage.name in ("download", "slice"):
            packages = of_rows
        InputsFile(
            params=select_values(params, stage.params),
            code=digest_sources(stage.deps),
            deps=stage.deps,
            packages=packages,
            environment=collect_decisive_environment() if stage.name in ("measure", "evaluate") else {},
        ).write(folder / f"{stage.name}.json")


def read_trial(path: Path) -> str | None:
    """Return the trial that is asked for now, else the one in the file, None before there was any.

    Kept, so that the next run finds nothing changed. Raises DataError for a damaged file.
    """
    if asked := os.environ.get(TRIAL):
        return asked
    kept = TrialFile.read_if_there(path)
    return kept.trial if kept else None


def digest_unless_known(place: Path) -> str | None:
    """Return digest_source of it, of which a note is kept: read again only if a file of it was written or replaced."""
    # Another version may take other files for it.
    begun, stamps, newest = time.time_ns(), hashlib.sha256(digest_file(Path(local_files.__file__)).encode()), 0
    for file in sorted(walk_files(place)) if place.is_dir() else [place] * place.is_file():
        fact = file.stat()
        # The time of change is nobody's to set.
        stamp = (str(file), fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_ino)
        stamps.update(repr(stamp).encode())
        newest = max(newest, fact.st_ctime_ns)
    known = _read_kept_digests()
    if (kept := known.get(str(place))) is not None and kept[0] == stamps.hexdigest():
        return kept[1]
    digest = digest_source(place)
    if digest is not None and begun - newest > _SETTLED_NS:
        with contextlib.suppress(OSError):
            write_json(_DIGESTS, {**known, str(place): [stamps.hexdigest(), digest]})
    return digest


def _read_kept_digests() -> dict[str, list[str]]:
    """Return source -> digest of its files' sizes and times, and its own; without what is damaged."""
    kept: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        kept = json.loads(_DIGESTS.read_bytes())
    return {
        place: entry
        for place, entry in (kept.items() if isinstance(kept, dict) else ())
        if isinstance(entry, list)
        and len(entry) == 2
        and all(isinstance(part, str) and _DIGEST.fullmatch(part) for part in entry)
    }


def note_versions(file: Path, machine: MachineFile) -> None:
    """Note which numbers this version and this machine come to, and say what changed of them beside finished work."""
    versions = list_versions()
    now: dict[str, Any] = {
        **versions,
        **machine.content(exclude={"digest", "gpus", "num_gpus", "versions"}),
        **machine.versions,
        "gpus": ", ".join(f"{gpu.name} {gpu.memory_gib} GiB" for gpu in machine.gpus),
    }
    # What an earlier note lacks of the machine is not known to have changed.
    before = {**now, **dict.fromkeys(versions, 0)}
    with contextlib.suppress(OSError, RecursionError, TypeError, ValueError):
        before |= json.loads(file.read_bytes())
    changed = {name: f"{name} {before[name]} -> {value}" for name, value in now.items() if before[name] != value}
    if changed and any((file.parent / name).is_dir() for name in ("runs", "measure")):
        anew = "measured anew" if set(changed) == {"measuring"} else "trained and measured anew"
        _log.warning(
            "changed since the last run here (%s): what %s does not hold of that yet is %s",
            ", ".join(changed.values()), file.parent, anew,
        )  # fmt: skip
    write_json(file, now)


def require_folder_for_dvc(folder: Path) -> None:
    """Raise ConfigurationError if the folder leads out of the git repository: DVC fails there once a stage is done."""
    here = Path.cwd()
    root = next((parent for parent in (here, *here.parents) if (parent / ".git").exists()), None)
    settings = configparser.ConfigParser(interpolation=None)
    settings.read([".dvc/config", ".dvc/config.local"])
    if root is None or settings.getboolean("core", "no_scm", fallback=False) or not folder.is_symlink():
        return
    if not folder.resolve().is_relative_to(root.resolve()):
        raise ConfigurationError(
            f"{folder}: leads to {folder.resolve()}, out of the git repository, where DVC keeps no outputs. Nor does "
            "that save room: .work and .dvc/cache hold the bytes. Move the whole project to that disk, or type "
            "`dvc config --local core.no_scm true` and keep the link"
        )


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.fingerprint", description=__doc__)
    for name in ("machine", "sources", "trial", "stages"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    configure_logging()
    for folder in (Path("data"), Path("reports")):
        require_folder_for_dvc(folder)
    params, machine = load_params(), collect_machine_facts()
    require_usable_gpus(params, machine)
    machine.write(arguments.machine)
    other = params.dataset.of_heldout
    sources = {
        "model": params.model.source, "dataset": params.dataset.source, "heldout": other and other.source,
        "template": params.dataset.template,
    }  # fmt: skip
    digests = {
        name: SourceDigest(digest=digest_unless_known(Path(source.removeprefix(FILE))))
        for name, source in sources.items()
        if source and source.startswith(FILE)
    }
    SourcesFile.model_validate(dict.fromkeys(sources) | digests).write(arguments.sources)
    if SILENT not in os.environ:
        note_versions(_VERSIONS, machine)
    TrialFile(trial=read_trial(arguments.trial)).write(arguments.trial)
    write_snapshots(arguments.stages, params)


if __name__ == "__main__":
    exit_with_one_line(_main, name="fingerprint")
