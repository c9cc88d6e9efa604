"""What happens around the steps: checkpoints, the network, processes, files, and what was asked for."""

import argparse
import functools
import io
import os
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ddp_audit.observer import timeline
from ddp_audit.observer.record import Guard, Record, is_main_thread
from ddp_audit.observer.samples import digest_one_by_one, list_tensors

_ASKED = re.compile(
    r"epoch|(max|num)_?(train(ing)?_)?(step|iter)|resume|restore|init_from|load_from|patience|early|seed", re.IGNORECASE
)
_MOST_FILES = 2_000
_SHORT_NAME = 2
_ROUNDED = (torch.bfloat16, torch.float16)
"""What the weights of a file may have become once they are read."""
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather", "scatter", "barrier", "all_gather_object",
    "broadcast_object_list", "gather_object",
)  # fmt: skip


class Surroundings:
    """Watches what costs time and is no step, and what the script was asked to do."""

    def __init__(self, record: Record, guard: Guard, times: timeline.Timeline, flush: Callable[[], None]) -> None:
        self._record, self._guard, self._times, self._flush = record, guard, times, flush
        self._files: set[tuple[str, str]] = set()
        self._loaded: dict[str, set[str]] = {}
        self._asked: set[str] = set()

    def watch(self) -> None:
        """From now on they are watched."""
        # Python's own events would tell of all this, but an optimizer's step alone asks for the numbers of 150 objects,
        # each of which is an event and would cost more than the rest of what is watched.
        replaced = {id(io.open): self._make_observed_open(io.open)}
        for owner, names, see in (
            (socket.socket, ("connect", "connect_ex"), self._see_connection),
            (subprocess.Popen, ("__init__",), self._see_process),
            (os, ("system", "posix_spawn", "posix_spawnp"), self._see_process),
            (os, ("execv", "execve"), self._see_replaced),
        ):
            for name in names:
                original = getattr(owner, name)
                self._wrap(owner, name, before=see)
                replaced[id(original)] = getattr(owner, name)
        # Some modules, as tarfile, have taken them by name; until Python 3.10 a class has.
        for place in (*sys.modules.values(), vars(pathlib).get("_NormalAccessor")):
            if type(place) in (ModuleType, type):
                for name, value in list(vars(place).items()):
                    if id(value) in replaced:
                        setattr(place, name, replaced[id(value)])
        self._watch_saved(torch, "save")
        self._wrap(torch, "load", after=self._see_loaded)
        for name in _COLLECTIVES if dist.is_available() else ():
            if hasattr(dist, name):
                self._time(dist, name, timeline.EXCHANGE)
        self._wrap(
            argparse.ArgumentParser, "parse_known_args",
            after=lambda result, *_: self.see_asked(vars(result[0]), "arguments"),
        )  # fmt: skip
        self._wrap(os, "_exit", before=lambda *_: self._flush())

    def watch_safetensors(self, module: Any) -> None:
        """Watch the functions of safetensors.torch, which has just been imported."""
        for name in ("save_file", "save_model"):
            self._watch_saved(module, name)
        self._wrap(module, "load_file", after=self._see_loaded)

    def _watch_saved(self, owner: Any, name: str) -> None:
        self._time(owner, name, timeline.CHECKPOINT)
        # It opens its file where no event tells of it.
        self._wrap(owner, name, before=lambda _content, file, *_: self._see_open(file, "w"))

    def see_globals(self) -> None:
        """Look at the script's own global names for what it was asked to do."""
        self.see_asked(dict(getattr(sys.modules.get("__main__"), "__dict__", {})), "globals")

    def match_loaded(self, parameters: list[torch.Tensor]) -> None:
        """Write how many parameters hold, before an optimizer's first step, what a file that was read holds."""
        mine = digest_one_by_one({id(item): item for item in parameters}.values()) if self._loaded else set()
        for path, digests in self._loaded.items():
            self._record.write("loaded", path=path, num_held=len(mine & digests), num_parameters=len(mine))

    def finish(self) -> None:
        """Look once more at what the script was asked to do."""
        self.see_globals()

    def _time(self, owner: Any, name: str, kind: str) -> None:
        """Count the time of a function as of this kind."""
        original, times = getattr(owner, name), self._times

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or not is_main_thread():
                return original(*arguments, **named)
            times.enter(kind)
            try:
                return original(*arguments, **named)
            finally:
                times.leave()

        setattr(owner, name, timed)

    def _wrap(self, owner: Any, name: str, *, before: Any = None, after: Any = None) -> None:
        """Have `before` see the arguments of a function, or `after` its result and its arguments."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def observed(*arguments: Any, **named: Any) -> Any:
            given = (*arguments, *named.values())
            if before is not None:
                self._guard(before, *given)
            result = original(*arguments, **named)
            if after is not None:
                self._guard(after, result, *given)
            return result

        setattr(owner, name, observed)

    def _see_loaded(self, content: Any, file: Any = None, *_: Any) -> None:
        if isinstance(file, str | os.PathLike):
            path = os.path.abspath(os.fspath(file))
            whole = content.state_dict() if hasattr(content, "state_dict") else content
            self._loaded[path] = digest_one_by_one((tensor for _, tensor in list_tensors(whole)), *_ROUNDED)
            self._record.write("read", path=path)

    def _see_replaced(self, program: Any, *_: Any) -> None:
        self._flush()
        self._record.write("replaced", program=str(program))

    def _see_connection(self, _socket: Any, address: Any) -> None:
        if is_main_thread() and isinstance(address, tuple):
            self._times.name_the_rest(timeline.NETWORK)

    def _see_process(self, *_: Any) -> None:
        if is_main_thread():
            self._times.name_the_rest(timeline.SUBPROCESS)

    def _make_observed_open(self, original: Any) -> Any:
        def observed(file: Any, mode: Any = "r", *arguments: Any, **named: Any) -> Any:
            self._guard(self._see_open, file, mode)
            return original(file, mode, *arguments, **named)

        # In a class it becomes no method, as little as the builtin one.
        return functools.update_wrapper(functools.partial(observed), original)

    def _see_open(self, path: Any, mode: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(mode, str):
            return
        # Where a file is made or appended to, and any that a run may be asked to go on from.
        kind = next((item for item in "awx" if item in mode), "r")
        whole = os.path.abspath(os.fsdecode(path))
        is_wanted = kind != "r" or any(asked in whole for asked in self._asked)
        is_new = (kind, whole) not in self._files and len(self._files) < _MOST_FILES
        if is_wanted and is_new and not whole.startswith(("/dev/", "/proc/")):
            self._files.add((kind, whole))
            self._record.write("open", path=whole, mode=kind)

    def see_asked(self, names: dict[str, Any], where: str) -> None:
        """Write those of the names that say what the script was asked to do."""
        results: dict[str, Any] = {}
        for name, value in names.items():
            if not _ASKED.search(name) or not isinstance(value, str | int | float | bool | os.PathLike):
                continue
            text = results[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
            if isinstance(text, str) and len(text) > _SHORT_NAME:
                self._asked.add(Path(text).name)
        there = {name: os.path.exists(value) for name, value in results.items() if isinstance(value, str) and value}
        self._record.write("asked", where=where, names=results, are_there=there)
