"""What strangers wrote is read with bounded memory and time, in a child or by native code; its faults are one line."""

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ddp_audit.process.lifeline import set_parent_death_signal
from tasks.process.failure import DataError, ExitCode, StageError
from training.process.failure import is_out_of_memory

_Result = TypeVar("_Result")
_SPARE_BYTES = 3 * 2**30
_SECONDS = 240.0
_BYTES_PER_SECOND = 100 * 2**20


class BoundedChild:
    """Runs functions one after another in a process of its own, which begins at the first and is begun anew if it ends.

    A fork, so that what is imported here is imported there. Use it as a context.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._said.close()

    def run(
        self,
        function: Callable[..., _Result],
        *arguments: Any,
        what: str,
        num_bytes: int = 0,
        is_endless: bool = False,
    ) -> _Result:
        """Return what `function` returns; raises the StageError that it raises.

        Raises DataError, naming `what`, where it takes more memory than 3 GiB and `num_bytes`, far more time than
        these take to be read, or ends the process. `is_endless`: it may take any time, and says itself how far it is.
        """
        num_bytes, seconds = _SPARE_BYTES + num_bytes, _SECONDS + num_bytes / _BYTES_PER_SECOND
        if self._process is None:
            self._start()
        self._said.truncate(0)
        self._pipe.send((function, arguments, num_bytes, is_endless))
        try:
            if not self._pipe.poll(None if is_endless else seconds):
                self._end()
                raise DataError(f"{what}: reading it takes over {seconds:.0f} s; allowed: that; use another one")
            result, error = self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self._end()
            if code == ExitCode.DATA and (said := self._read()):
                raise DataError(said[-1]) from None
            error = MemoryError()
        if isinstance(error, MemoryError):
            raise DataError(
                f"{what}: reading it takes more than {num_bytes / 2**30:.0f} GiB of memory, or ends the process that "
                "reads it; use another one"
            )
        sys.stderr.write("".join(f"{line}\n" for line in self._read()))
        if error is not None:
            raise error
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, its = context.Pipe()
        # What torch has begun here are no threads there, and would be waited for.
        is_single = "torch" in sys.modules
        self._process = context.Process(target=_serve, args=(its, self._said.fileno(), os.getpid(), is_single))
        self._process.start()
        its.close()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def _read(self) -> list[str]:
        self._said.seek(0)
        return self._said.read().decode(errors="replace").splitlines()


def _serve(pipe: Connection, stderr: int, parent: int, is_single: bool) -> None:
    set_parent_death_signal(signal.SIGKILL, parent=parent)
    faulthandler.disable()  # an end of its own is one line in the parent
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent's affair
        signal.signal(number, signal.SIG_IGN)
    live = os.dup(2)
    sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115 - lives as long as the process
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    if is_single:
        import torch

        torch.set_num_threads(1)
    while True:
        try:
            function, arguments, num_bytes, is_endless = pipe.recv()
        except EOFError:
            os._exit(ExitCode.OK)
        os.lseek(stderr, 0, os.SEEK_SET)
        os.dup2(live if is_endless else stderr, 2)
        pipe.send(_call(function, arguments, num_bytes))


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], num_bytes: int) -> tuple[Any, BaseException | None]:
    """Return what it returns, and what it raises."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    # What can be written to: neither mapped files nor addresses that are only reserved.
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    resource.setrlimit(
        resource.RLIMIT_DATA,
        (next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")) + num_bytes, hard),
    )
    try:
        return function(*arguments), None
    except StageError as error:
        return None, error
    except BaseException as error:
        if is_panic(error):
            return None, DataError(f"a library panics ({' '.join(str(error).split())[:300]})")
        if isinstance(error, Exception) and is_out_of_memory(error):
            return None, MemoryError()
        sys.stderr.write(traceback.format_exc())
        return None, RuntimeError(f"{type(error).__name__}: {error}")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def is_panic(error: BaseException) -> bool:
    """Return whether it is a panic of a library written in Rust, which is no Exception."""
    return type(error).__name__ == "PanicException"


@contextlib.contextmanager
def bound_native_code(what: str, *, seconds: float, remedy: str) -> Iterator[None]:
    """Run native code that nothing but the end of the process can interrupt.

    After `seconds` the process ends with one line and the exit code for data; a panic raises DataError, and what the
    library itself writes of it is left out. Whatever else is written to standard error meanwhile comes at the end.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as said, os.fdopen(os.dup(2), "wb", buffering=0) as stderr:

        def end() -> None:
            stderr.write(f"{what}: takes over {seconds:.0f} s; allowed: that; {remedy}\n".encode())
            os._exit(ExitCode.DATA)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        os.dup2(said.fileno(), 2)
        has_panicked = False
        try:
            yield
        except BaseException as error:
            has_panicked = is_panic(error)
            if not has_panicked:
                raise
            raise DataError(f"{what}: panics ({' '.join(str(error).split())[:300]}); {remedy}") from None
        finally:
            timer.cancel()
            sys.stderr.flush()
            os.dup2(stderr.fileno(), 2)
            said.seek(0)
            if not has_panicked:
                stderr.write(said.read())
