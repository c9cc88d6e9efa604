"""What happens around the steps: checkpoints, the network, processes, log lines, files, and what was asked for."""

import argparse
import functools
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_audit.observer import timeline
from ddp_audit.observer.record import Guard, Record, is_main_thread
from ddp_audit.observer.samples import digest_one_by_one, list_tensors

_ASKED = re.compile(
    r"epoch|max_?(steps|iter)|num_?(steps|iter)|resume|restore|init_from|load_from|patience|early|seed", re.IGNORECASE
)
_EVENTS = frozenset({"open", "socket.connect", "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
_MOST_FILES = 2_000
_SHORT_NAME = 2
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
        self._num_children = 0

    def watch(self) -> None:
        """From now on they are watched."""
        see, events = self._see_event, _EVENTS

        def on_output(event: str, arguments: Any) -> None:
            # An optimizer's step alone asks for the numbers of 150 objects, each of which is an event.
            if event in events:
                see(event, arguments)

        sys.addaudithook(on_output)
        torch.save = self._watch_saving(self._time(torch.save, timeline.CHECKPOINT))
        self._watch_loading(torch, "load")
        logging.Logger.callHandlers = self._time(logging.Logger.callHandlers, timeline.LOGGING)  # type: ignore[method-assign]
        if dist.is_available():
            for name in _COLLECTIVES:
                if hasattr(dist, name):
                    setattr(dist, name, self._time(getattr(dist, name), timeline.EXCHANGE))
        parse = argparse.ArgumentParser.parse_known_args

        @functools.wraps(parse)
        def observed_parse(parser: Any, *arguments: Any, **named: Any) -> Any:
            result = parse(parser, *arguments, **named)
            self._guard(self.see_asked, vars(result[0]), "arguments")
            return result

        argparse.ArgumentParser.parse_known_args = observed_parse  # type: ignore[method-assign, assignment]
        end = os._exit

        @functools.wraps(end)
        def observed_end(status: int) -> Any:
            self._guard(self._flush)
            end(status)

        os._exit = observed_end
        os.register_at_fork(after_in_parent=lambda: self._guard(self._count_child))

    def watch_safetensors(self, module: Any) -> None:
        """Watch the functions of safetensors.torch, which has just been imported."""
        for name in ("save_file", "save_model"):
            setattr(module, name, self._time(getattr(module, name), timeline.CHECKPOINT))
        self._watch_loading(module, "load_file")

    def see_globals(self) -> None:
        """Look at the script's own global names for what it was asked to do."""
        self.see_asked(dict(getattr(sys.modules.get("__main__"), "__dict__", {})), "globals")

    def match_loaded(self, parameters: list[torch.Tensor]) -> None:
        """Write how many parameters hold, before the first step, what a file that was read holds."""
        mine = digest_one_by_one(parameters)
        for path, digests in self._loaded.items():
            self._record.write("loaded", path=path, num_held=len(mine & digests), num_parameters=len(mine))
        self._loaded.clear()

    def finish(self) -> None:
        """Write what is known at the end alone."""
        self.see_globals()
        if self._num_children:
            self._record.write("children", number=self._num_children)

    def _time(self, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
        times = self._times

        @functools.wraps(original)
        def timed(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or not is_main_thread():
                return original(*arguments, **named)
            times.enter(kind)
            try:
                return original(*arguments, **named)
            finally:
                times.leave()

        return timed

    def _watch_saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(content: Any, f: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(f, str | os.PathLike):
                # It is opened where no event tells of it.
                self._guard(self._see_open, os.fspath(f), "w", 0)
            return original(content, f, *arguments, **named)

        return save

    def _watch_loading(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def load(file: Any, *arguments: Any, **named: Any) -> Any:
            result = original(file, *arguments, **named)
            if isinstance(file, str | os.PathLike):
                self._guard(self._see_loaded, os.path.abspath(os.fspath(file)), result)
            return result

        setattr(module, name, load)

    def _see_loaded(self, path: str, content: Any) -> None:
        tensors = [tensor for _, tensor in list_tensors(content)]
        if hasattr(content, "state_dict"):
            tensors = list(content.state_dict().values())
        self._loaded[path] = digest_one_by_one(tensors)
        self._record.write("read", path=path, num_tensors=len(tensors))

    def _see_event(self, event: str, arguments: Any) -> None:
        if event == "open":
            self._guard(self._see_open, *arguments)
        elif event == "os.exec":
            self._guard(self._flush)
            self._record.write("replaced", program=str(arguments[0]))
        elif event != "socket.connect":
            self._name_the_rest(timeline.SUBPROCESS)
        elif isinstance(arguments[1], tuple):
            self._name_the_rest(timeline.NETWORK)

    def _name_the_rest(self, kind: str) -> None:
        if is_main_thread():
            self._guard(self._times.name_the_rest, kind)

    def _see_open(self, path: Any, mode: Any, _flags: Any) -> None:
        if not isinstance(path, str | bytes) or not isinstance(mode, str):
            return
        # Where a file is made or appended to, and any that a run may be asked to go on from.
        kind = next((item for item in "awx" if item in mode), "r")
        whole = os.path.abspath(os.fsdecode(path))
        if kind == "r" and not any(asked in whole for asked in self._asked):
            return
        if (kind, whole) in self._files or len(self._files) >= _MOST_FILES or whole.startswith(("/dev/", "/proc/")):
            return
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

    def _count_child(self) -> None:
        self._num_children += 1
