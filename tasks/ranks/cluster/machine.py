"""One machine of a Ray cluster: an actor there, what is asked of it and brought to it, and whether it is lost."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tasks
from tasks.params.cells import list_packages
from tasks.process.failure import ConfigurationError, DistributedError
from tasks.ranks.cluster.connection import require_head
from training.process.files import digest_file
from training.state.receipt import DROPPED, find_receipt_problem

_PROJECT = Path(tasks.__file__).parents[1]
_CHUNK_BYTES = 2**24
_SECONDS_TO_PREPARE = 900.0
"""For the digests of a model of many GB on a slow disk."""


class Machine:
    """An actor of class `kind` on one node, which is made for `who`."""

    def __init__(
        self,
        results: dict[str, Any],
        kind: type,
        *,
        who: str,
        number: int,
        silence_seconds: float,
        stop: threading.Event,
    ) -> None:
        """`found`: the node as Ray describes it; once `stop` is set, no answer is waited for."""
        self.who, self.number, self.address = who, number, str(results["NodeManagerAddress"])
        self.facts: dict[str, Any] = {}
        self.asked: Any = None
        """The answer that is being waited for."""
        self.heard_at = time.monotonic()
        self.is_lost = False
        self.silence_seconds = silence_seconds
        self._stop, self._id = stop, results["NodeID"]
        self.actor = self.make(kind, silence_seconds)

    @property
    def name(self) -> str:
        """Which machine it is, for a person."""
        return f"node {self.number} ({self.facts.get('host', self.address)})"

    def make(self, kind: type, *words: Any, threads: int = 1) -> Any:
        """Return a new actor on this machine; Ray reserves nothing for it."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Nobody has to have this project installed.
        ray.cloudpickle.register_pickle_by_value(sys.modules[kind.__module__])
        there = NodeAffinitySchedulingStrategy(self._id, soft=False)
        made = ray.remote(kind).options(num_cpus=0, max_restarts=0, max_concurrency=threads, scheduling_strategy=there)
        return made.remote(*words)

    def ask(self, what: str, *words: Any, **named: Any) -> Any:
        """Return what the actor answers, as `get` does."""
        return self.get(getattr(self.actor, what).remote(*words, **named))

    def get(self, answer: Any) -> Any:
        """Return the answer; raises the DistributedError of a machine that is lost, or what went wrong there."""
        import ray

        deadline = time.monotonic() + _SECONDS_TO_PREPARE
        while True:
            try:
                return ray.get(answer, timeout=1.0)
            except ray.exceptions.GetTimeoutError:
                require_head(self.who, seconds=self.silence_seconds)
            except ray.exceptions.RayTaskError as error:
                said = " ".join(str(error.cause).split())[:500]
                raise DistributedError(f"{self.who}: {self.name}: {said}; run again") from error
            except ray.exceptions.RayError as error:
                raise self.lose(" ".join(str(error).split())[:300]) from None
            if self._stop.is_set() or time.monotonic() > deadline:
                raise self.lose("no answer")

    def lose(self, why: str) -> DistributedError:
        """Return the error that says so; nothing is asked of it any more."""
        self.is_lost = True
        return DistributedError(
            f"{self.who}: {self.name} is lost: {why}; all ranks were ended; run again, it goes on from the last "
            "checkpoint"
        )

    def prepare(
        self, files: dict[str, tuple[str, str]], *, like: Mapping[str, Any], packages: Sequence[str] = ()
    ) -> Path:
        """Bring it what it lacks of the files: name -> (sha256, where it is here); return their folder there.

        `like`: the facts of the stage's own machine, which this is if there are none; `packages`: what computes there
        beside torch and its like.
        """
        places = dict(files.values())
        for digest in self.ask("list_missing", files):
            left = Path(places[digest]).stat().st_size
            with Path(places[digest]).open("rb") as opened:
                while True:
                    content = opened.read(_CHUNK_BYTES)
                    left -= len(content)
                    self.ask("write", digest, content, is_last=left <= 0)
                    if left <= 0:
                        break
        project = None if like else os.getcwd()
        place = {"node_rank": self.number, "address": self.address, "packages": packages}
        said = self.ask("prepare", files, project=project, **place)
        self.require_fit(said, like=(like or said["facts"])["versions"])
        return Path(said["folder"])

    def require_fit(self, said: dict[str, Any], *, like: Mapping[str, str | None]) -> None:
        """Take in what the machine said of itself; ConfigurationError without a token or with other versions."""
        self.facts = said["facts"]
        if said["is_open"]:
            raise ConfigurationError(
                f"{self.who}: {self.name}: Ray was started there without RAY_AUTH_MODE=token; start it with"
            )
        there = self.facts["versions"]
        if other := [f"{name} {there.get(name)}, here {like[name]}" for name in like if there.get(name) != like[name]]:
            raise ConfigurationError(
                f"{self.who}: {self.name}: other versions than here: {'; '.join(other)}; install requirements.lock on "
                "all machines, and for deepspeed and peft requirements-extras.lock (make extras)"
            )


class JobBundle:
    """What another machine has to have before its ranks start: the stage's code, its data and its newest checkpoint.

    Every file is named by its sha256, and looked for there under the same path and in what came before; what is missing
    is sent.
    """

    def __init__(self, config: Path) -> None:
        """`config`: of the launch (training/config.py)."""
        self._config = json.loads(config.read_bytes())
        named = [self._config["model_dir"], *(segment["slice_dir"] for segment in self._config["segments"])]
        named += [self._config["heldout_dir"]] * bool(self._config["heldout_digest"])
        self._folders = {name: f"data/{index}" for index, name in enumerate(dict.fromkeys(named))}
        results = [
            (f"{to}/{file.name}", file) for name, to in self._folders.items() for file in _list_files(Path(name))
        ]
        # Beside Python some rooms have tables of figures.
        code = [file for room in ("ddp_audit", "tasks", "training") for file in sorted((_PROJECT / room).rglob("*"))]
        results += [(f"code/{file.relative_to(_PROJECT)}", file) for file in code if file.suffix in (".py", ".toml")]
        work = Path(self._config["work_dir"])
        for folder in list_checkpoints(work, self._config):
            results += [(f"work/{file.relative_to(work)}", file) for file in _list_files(folder)]
        self.files = {
            name: (_digest_unchanged(file, file.stat().st_mtime_ns, file.stat().st_size), str(file))
            for name, file in results
        }
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
        if find_receipt_problem(segment, fingerprint=fingerprint, may_lack=DROPPED[payload["keep"]]) is None:
            last = segment
            continue
        partials = (work / "partial" / fingerprint).glob("step-*")
        yield from (
            folder for folder in sorted(partials) if find_receipt_problem(folder, fingerprint=fingerprint) is None
        )
        break
    if last is not None:
        yield last


def _list_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.is_file()]


@lru_cache(maxsize=4096)
def _digest_unchanged(file: Path, _changed_at: int, _size: int) -> str:
    """Return the file's sha256, computed once as long as it is the same: a stage launches several times."""
    return digest_file(file)
