"""The ranks on one machine of a Ray cluster, as an actor holds them.

Ray sends this class as it is; all else comes over as files, so that only the standard library is imported here
before `prepare`. An actor does one thing at a time, in its first thread: what it starts ends with that thread.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_KEPT = 14 * 86_400.0
_OF_A_MACHINE = ("_AUDIT", "_DEVICES", "_FILE", "_HCA", "_HOSTID", "_IFACE", "_IFNAME", "_PLUGIN", "_PRELOAD")
"""Endings of variables that name a file, a device or itself on one machine."""


class NodeRanks:
    """One machine's part of a launch: its files, its ranks, and what they say.

    It ends its ranks and itself once nothing has been asked of it for `silence_seconds`: the stage is gone.
    """

    def __init__(self, silence_seconds: float) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp-compare" / "ray"
        self._files = cache / "files"
        self._files.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="launch-", dir=cache))
        # Held until the end of this process: by it a folder is told from one that was left by a killed actor.
        self._lock = (self._folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._places: dict[str, Path] = {}
        self._ranks: dict[int, subprocess.Popen[bytes]] = {}
        self._told_failures: set[str] = set()
        self._work, self._logs = self._folder / "work", self._folder / "logs"
        self._is_shared = False
        self._dog: Any = None
        self._cap: Any = None
        self._energy: float | None = None
        self._silence_seconds = silence_seconds
        self._heard_at = float("inf")
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def list_missing(self, files: dict[str, tuple[str, str]]) -> list[str]:
        """Return the sha256 of what is not here; `files`: name -> (sha256, where the stage has it)."""
        with self._asked():
            for old in self._files.iterdir():
                with contextlib.suppress(OSError):
                    if time.time() - old.stat().st_atime > _SECONDS_KEPT:
                        old.unlink()
            for folder in self._files.parent.glob("launch-*"):
                with contextlib.suppress(OSError), (folder / "lock").open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            for digest, place in files.values():
                for file in (Path(place), self._files / digest):
                    if digest not in self._places and file.is_file() and _digest(file) == digest:
                        self._places[digest] = file
            return sorted({digest for digest, _ in files.values()} - self._places.keys())

    def write(self, digest: str, content: bytes, *, is_last: bool) -> None:
        """Append to the file with this sha256; raises ValueError if it is not that when it is whole."""
        with self._asked():
            arriving = self._folder / digest
            with arriving.open("ab") as file:
                file.write(content)
            if is_last and _digest(arriving) != digest:
                arriving.unlink()
                raise ValueError(f"a file did not arrive whole: its sha256 is not {digest[:12]}")
            if is_last:
                self._places[digest] = arriving.rename(self._files / digest)

    def prepare(self, files: dict[str, tuple[str, str]], *, project: str | None, **place: Any) -> dict[str, Any]:
        """Lay out the files below a folder of this launch; return it, and what this machine is.

        `project` is the stage's folder where this is the stage's own machine, of which nothing has to be laid out.
        """
        with self._asked():
            self._is_shared = project is not None
            for name, (digest, _) in files.items():
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                (self._folder / name).symlink_to(self._places[digest])
            sys.path.insert(0, project or str(self._folder / "code"))
            from tasks.machine.facts import collect_node_facts, read_gpu_energy_joules

            self._energy = read_gpu_energy_joules()
            is_open = os.environ.get("RAY_AUTH_MODE") != "token"
            return {"folder": str(self._folder), "is_open": is_open, "facts": collect_node_facts(**place)}

    def start(
        self, ranks: list[int], words: list[str], environment: dict[str, str], *, world_size: int,
        config: dict[str, Any] | None, own: dict[str, Any] | None,
    ) -> None:  # fmt: skip
        """Start the ranks: as the stage itself would (`own`), or with this config and what this machine has.

        Over that goes `environment`, which has what is portable of the stage's: of this machine's none is kept.
        """
        with self._asked():
            from ddp_audit.process.lifeline import set_parent_death_signal
            from ddp_audit.process.torchrun import LogCap
            from tasks.ranks.watchdog import Watchdog

            base: dict[str, str] = dict(os.environ)
            python, cwd = sys.executable, str(self._folder / "code")
            if own is not None:
                python, cwd, base, self._logs = own["python"], own["cwd"], own["environment"], Path(own["logs"])
            else:
                for name in collect_portable():
                    del base[name]
                self._work.mkdir(exist_ok=True)
                (self._work / "config.json").write_text(json.dumps(config))
                self._dog = Watchdog(world_size=world_size, step_seconds=1e9, ranks_heard=len(ranks))
                places = {"CONFIG": str(self._work / "config.json"), "HEARTBEAT": str(self._dog.file)}
                words = [places.get(word, word) for word in words]
            # What Ray sets for its own processes, the token among it, is none of a rank's.
            base = {name: value for name, value in base.items() if not name.startswith(("RAY_", "PYTHONBREAKPOINT"))}
            self._logs.mkdir(parents=True, exist_ok=True)
            me = os.getpid()
            for local_rank, rank in enumerate(ranks):
                folder = self._logs / str(rank)
                folder.mkdir()
                payload = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(len(ranks))}
                with (folder / "stdout.log").open("ab") as out, (folder / "stderr.log").open("ab") as err:
                    self._ranks[rank] = subprocess.Popen(
                        [python, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                        cwd=cwd, env={**base, **environment, **payload},
                        preexec_fn=partial(set_parent_death_signal, signal.SIGKILL, parent=me),
                    )  # fmt: skip
            self._cap = LogCap(self._logs)

    def look(self) -> dict[str, Any]:
        """Return exit codes of ranks that have ended, and what those of another machine leave for the stage."""
        with self._asked():
            codes = {rank: code for rank, item in self._ranks.items() if (code := item.poll()) is not None}
            if self._dog is None:
                return {"codes": codes, "at": {}, "failures": []}
            self._dog.look()
            failures = []
            for file in sorted((self._work / "failures").glob("rank-*.json")):
                with contextlib.suppress(OSError, ValueError):
                    if file.name not in self._told_failures:
                        words = json.loads(file.read_bytes())
                        # Monotonic clocks of two machines have nothing in common.
                        failures.append({**words, "seconds_ago": time.monotonic() - words["at"]})
                        self._told_failures.add(file.name)
            at = {rank: self._dog.read_words(rank) for rank in self._ranks}
            return {"codes": codes, "at": at, "failures": failures}

    def ask_to_stop(self) -> None:
        """Ask the ranks to save and end."""
        with self._asked():
            self._signal(signal.SIGTERM)

    def ask_for_stacks(self) -> None:
        """Have the ranks write their Python stacks into their logs, where the stage cannot reach them itself."""
        with self._asked():
            if self._dog is not None:
                self._dog.ask_for_stacks()

    def finish(self) -> dict[str, Any]:
        """End the ranks; return the logs of another machine, and the energy that its GPUs used."""
        with self._asked():
            from tasks.machine.facts import compute_energy_since

            self._end()
            if self._cap is not None:
                self._cap.close()
            logs = {} if self._is_shared else {file: file.read_bytes() for file in self._logs.rglob("*.log")}
            named = {file.relative_to(self._logs).as_posix(): content for file, content in logs.items()}
            shutil.rmtree(self._folder, ignore_errors=True)
            return {"logs": named, "gpu_energy_joules": compute_energy_since(self._energy)}

    @contextlib.contextmanager
    def _asked(self) -> Any:
        self._heard_at = float("inf")
        try:
            yield
        finally:
            # Before there are ranks others may have to wait for files for long, and there is nothing to end.
            self._heard_at = time.monotonic() if self._ranks else float("inf")

    def _watch(self) -> None:
        while time.monotonic() - self._heard_at < self._silence_seconds:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)

    def _end(self) -> None:
        self._signal(signal.SIGKILL)
        for rank in self._ranks.values():
            rank.wait()
        if self._dog is not None:
            self._dog.file.unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        for rank in self._ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, number)


def collect_portable() -> dict[str, str]:
    """Return the variables of this process that change numbers or speed and mean the same on other machines."""
    from training.record.environment import collect_environment

    return {name: os.environ[name] for name in collect_environment() if not name.endswith(_OF_A_MACHINE)}


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
