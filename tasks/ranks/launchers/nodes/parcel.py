"""What a node has to have before the first step: the head's code, its data, and what a launch made for itself.

Code and whatever stands in data/ was made or fetched once and is there on every node already, or is refused by name:
every file is held against the head's by its sha256. What a stage wrote for one launch (the sample of a certificate) is
sent.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import training
from tasks.process.failure import DataError
from tasks.ranks.launchers.nodes.line import Line
from training.process.files import digest_file

_CODE = Path(training.__file__).parent
_DATA = Path("data")


def pack(config: dict[str, Any]) -> dict[str, Any]:
    """Return what another node is told of a launch that has this config (training/config.py)."""
    code = {file.relative_to(_CODE).as_posix(): _digest_once(file) for file in sorted(_CODE.rglob("*.py"))}
    folders = []
    for folder in _list_folders(config):
        files = {file.name: _digest_once(file) for file in sorted(folder.iterdir()) if file.is_file()}
        is_sent = not folder.is_relative_to(_DATA.resolve())
        name = str(folder) if is_sent else folder.relative_to(Path.cwd()).as_posix()
        folders.append({"folder": str(folder), "name": name, "is_sent": is_sent, "files": files})
    return {"config": config, "code": code, "folders": folders}


def send_files(parcel: dict[str, Any], line: Line) -> None:
    """Send the files that the other node cannot have."""
    for file in _list_sent_files(parcel, {part["folder"]: Path(part["folder"]) for part in parcel["folders"]}):
        line.say_bytes(file.read_bytes())


def unpack(parcel: dict[str, Any], line: Line, *, work: Path) -> dict[str, Any]:
    """Return the config with this node's own folders, the sent files being in `work`.

    Raises DataError in one line if code or data are missing here, or are not the head's.
    """
    places = {}
    for index, part in enumerate(parcel["folders"]):
        places[part["folder"]] = work / f"sent-{index}" if part["is_sent"] else Path(part["name"]).resolve()
    for file in _list_sent_files(parcel, places):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(line.hear_bytes())
    _require_same(_CODE, parcel["code"], name="training", remedy="bring all nodes to the same commit")
    for part in parcel["folders"]:
        remedy = "copy data/base_model and data/slices from the head (rsync -a --delete)"
        _require_same(places[part["folder"]], part["files"], name=part["name"], remedy=remedy)
    config = parcel["config"]
    return {
        **config,
        "work_dir": str(work),
        "model_dir": str(places[config["model_dir"]]),
        "segments": [{**segment, "slice_dir": str(places[segment["slice_dir"]])} for segment in config["segments"]],
    }


def _list_folders(config: dict[str, Any]) -> list[Path]:
    named = [config["model_dir"], *(segment["slice_dir"] for segment in config["segments"])]
    return [Path(name) for name in dict.fromkeys(named)]


def _list_sent_files(parcel: dict[str, Any], places: dict[str, Path]) -> Iterator[Path]:
    for part in parcel["folders"]:
        if part["is_sent"]:
            yield from (places[part["folder"]] / name for name in part["files"])


def _require_same(folder: Path, files: dict[str, str], *, name: str, remedy: str) -> None:
    for file, digest in files.items():
        here = folder / file
        if not here.is_file():
            raise DataError(f"{name}/{file} is missing in {Path.cwd()}; {remedy}")
        if (found := digest_file(here)) != digest:
            raise DataError(f"{name}/{file} is not the head's: sha256 {found[:12]}, there {digest[:12]}; {remedy}")


def _digest_once(file: Path) -> str:
    facts = file.stat()
    return _digest_unchanged(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=4096)
def _digest_unchanged(file: Path, _changed_at: int, _size: int) -> str:
    """Return the file's sha256, computed once as long as it is the same: a stage launches several times."""
    return digest_file(file)
