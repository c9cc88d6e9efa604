"""A bound on the memory that the decoding of a stranger's file takes, whatever the file says of itself."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from tasks.process.failure import DataError

MOST_BYTES = 4 * 2**30
"""Of rows that are decoded at one time, in whatever form; row groups of real data sets take a tenth of it."""


@contextlib.contextmanager
def bound_decoding(num_bytes: int, *, place: str) -> Iterator[None]:
    """Have the block fail with DataError, naming `place`, where it wants that much more memory than there is in use.

    The kernel counts what can be written to (RLIMIT_DATA): neither mapped files nor addresses that are only reserved.
    """
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (_read_bytes_in_use() + num_bytes, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
    try:
        yield
    except MemoryError:
        raise DataError(
            f"{place}: decoding it takes more than {num_bytes / 2**30:.1f} GiB at one time; allowed: that; write it "
            "anew with smaller row groups and pages"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _read_bytes_in_use() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
