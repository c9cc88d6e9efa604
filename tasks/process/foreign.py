"""Native code that runs what a stranger's file says: its panics are one line, and so is work without end."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

from tasks.process.failure import DataError, ExitCode


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
