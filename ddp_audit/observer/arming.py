"""How the observer comes to life in a rank: when the script has imported torch, and not before."""

import atexit
import faulthandler
import fcntl
import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import ddp_audit.observer
from ddp_audit.observer.record import Guard, Record

_MODULES = ("torch", "safetensors.torch")


class Observer:
    """What a process that is observed holds."""

    def __init__(self, record: Record, *, heartbeat: str | None) -> None:
        self._record, self._heartbeat = record, heartbeat
        self.guard = Guard(record)
        self.steps: Any = None
        self._around: Any = None

    def see_imported(self, module: ModuleType) -> None:
        """Watch a module that has just been imported."""
        if module.__name__ == "torch":
            if self.steps is None:  # else it was loaded anew
                self.guard(self.arm)
        elif self._around is not None:
            self.guard(self._around.watch_safetensors, module)

    def state(self, **said: Any) -> None:
        """Keep what the script says of the step that is under way."""
        if self.steps is not None:
            self.guard(self.steps.stated.update, said)

    def state_asked(self, names: dict[str, Any]) -> None:
        """Write what the script says that it was asked for."""
        if self._around is not None:
            self.guard(self._around.see_asked, names, "told")

    def arm(self) -> None:
        """Watch torch, the clocks and what happens around."""
        import torch

        from ddp_audit.observer.around import Surroundings
        from ddp_audit.observer.clocks import Clocks, ScriptLines
        from ddp_audit.observer.computed import Computing
        from ddp_audit.observer.fed import Loaders
        from ddp_audit.observer.steps import Steps
        from ddp_audit.observer.timeline import Place, Timeline
        from ddp_audit.process.flight_recorder import start_recorder

        place, lines = Place(self._heartbeat), ScriptLines()
        shared = self._record, self.guard, Timeline(place)
        times = shared[-1]
        steps = self.steps = Steps(*shared, place, lines)
        clocks, loaders, around = Clocks(*shared, lines), Loaders(*shared), Surroundings(*shared, steps.flush)
        self._around, computing = around, Computing(self.guard, times, steps, loaders, lines)
        clocks.count_steps = loaders.count_steps = lambda: steps.number
        steps.on_flush, steps.on_learned, steps.on_lost = clocks.match, computing.stop_learning, computing.learn_models

        def see_first(parameters: list[torch.Tensor]) -> None:
            around.match_loaded([*parameters, *computing.list_parameters()])
            around.see_globals()

        steps.on_first = see_first
        for part in (steps, clocks, around, loaders, computing):
            part.watch()
        start_recorder()
        self._record.write("torch", version=torch.__version__, device_count=torch.cuda.device_count())

        def finish() -> None:
            steps.flush()
            for part in (clocks, loaders, around):
                part.finish()
            self._record.write("end", seconds=times.take(times.copy()))

        atexit.register(self.guard, finish)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as the others do, and tells the observer once those that it waits for have been imported."""

    def __init__(self, see: Callable[[ModuleType], Any]) -> None:
        self._see = see
        self._is_looking = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _MODULES or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            execute: Any = spec.loader.exec_module

            def execute_and_report(module: ModuleType) -> None:
                execute(module)
                self._see(module)

            spec.loader.exec_module = execute_and_report  # type: ignore[method-assign]
        return spec


def arm_when_torch_comes(folder: str, *, rank: int | None, heartbeat: str | None) -> Observer:
    """Begin the record of this rank; watch it as soon as the script imports torch.

    Without a rank it is that of the process group at the first step, or 0.
    """
    record = Record(folder, rank=rank)
    record.write(
        "start", pid=os.getpid(), rank=rank, python=sys.version.split()[0],
        is_hash_salted=bool(sys.flags.hash_randomization),
    )  # fmt: skip
    for stream in (1, 2):
        # Logs that grow too long are cut; what is written next would leave a hole before it.
        fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    observer = Observer(record, heartbeat=heartbeat)
    ddp_audit.observer.observer = observer
    os.register_at_fork(after_in_child=lambda: setattr(observer.guard, "is_on", False))
    if "torch" in sys.modules:
        observer.see_imported(sys.modules["torch"])
    sys.meta_path.insert(0, _Finder(observer.see_imported))
    return observer
