"""What a machine has to have before its ranks start: the stage's code, its data and its newest checkpoint.

Every file is named by its sha256, and looked for there under the same path and in what came before; what is missing is
sent.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tasks
from tasks.params.packages import list_packages
from training.process.files import digest_file
from training.state.receipt import DROPPED, find_problem

_PROJECT = Path(tasks.__file__).parents[1]


class Parcel:
    """The files of a launch with this config (training/config.py), for a machine that is not the stage's."""

    def __init__(self, config: Path) -> None:
        self._config = json.loads(config.read_bytes())
        named = [self._config["model_dir"], *(segment["slice_dir"] for segment in self._config["segments"])]
        named += [self._config["heldout_dir"]] * bool(self._config["heldout_digest"])
        self._folders = {name: f"data/{index}" for index, name in enumerate(dict.fromkeys(named))}
        results = [
            (f"{to}/{file.name}", file) for name, to in self._folders.items() for file in _list_files(Path(name))
        ]
        code = [file for room in ("ddp_audit", "tasks", "training") for file in (_PROJECT / room).rglob("*.py")]
        results += [
            (f"code/{file.relative_to(_PROJECT)}", file) for file in [file for file in sorted(code) if file.is_file()]
        ]
        work = Path(self._config["work_dir"])
        for folder in list_checkpoints(work, self._config):
            results += [(f"work/{file.relative_to(work)}", file) for file in _list_files(folder)]
        self.files = {name: (_digest_once(file), str(file)) for name, file in results}
        """Name -> (sha256, where it is here)."""
        self.packages = list_packages(self._config["strategy"], self._config["adapter"])
        """What its ranks compute with beside torch and its like; of one version on all machines."""

    def make_config(self, folder: Path) -> dict[str, Any]:
        """Return the config for a machine that has the files below this folder."""
        segments = [
            {**part, "slice_dir": str(folder / self._folders[part["slice_dir"]])} for part in self._config["segments"]
        ]
        model = str(folder / self._folders[self._config["model_dir"]])
        heldout = self._config["heldout_dir"]
        return {
            **self._config, "work_dir": str(folder / "work"), "model_dir": model, "segments": segments,
            "heldout_dir": str(folder / self._folders[heldout]) if heldout in self._folders else heldout,
        }  # fmt: skip


def list_checkpoints(work: Path, payload: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the folders from which a launch that is told so may go on, each verified by its receipt.

    They are the last finished segment, and the partial checkpoints of the one after it.
    """
    last = None
    for fingerprint in [part["fingerprint"] for part in payload["segments"]]:
        segment = work / "segments" / fingerprint
        if find_problem(segment, fingerprint=fingerprint, may_lack=DROPPED[payload["keep"]]) is None:
            last = segment
            continue
        partials = (work / "partial" / fingerprint).glob("step-*")
        yield from (folder for folder in sorted(partials) if find_problem(folder, fingerprint=fingerprint) is None)
        break
    if last is not None:
        yield last


def _list_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.is_file()]


def _digest_once(file: Path) -> str:
    facts = file.stat()
    return _digest_unchanged(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _digest_unchanged(file: Path, _changed_at: int, _size: int) -> str:
    """Return the file's sha256, computed once as long as it is the same: a stage launches several times."""
    return digest_file(file)
