"""Memory of the host that a step gave back and the next one takes again: kept, instead of handed to the kernel between.

By itself glibc returns large pieces, and what is free at the end of its heap. A step then gets its activations as pages
that the kernel fills with zeros first, thousands of them, every time.
"""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names (malloc.h): free bytes at the end of the heap above which it shrinks; bytes from which on a piece is no
part of the heap."""
_NEVER = 2**31 - 1
_LARGEST_IN_HEAP = 32 * 2**20
"""The largest that every glibc takes. Larger pieces are few, and would leave large holes."""


def keep_freed_memory() -> bool:
    """Have this process keep what it frees for what it allocates next; return whether it does.

    False, and nothing is changed, where the environment says how memory is to be had, and without glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return change is not None and all(
        change(name, value) == 1 for name, value in ((_MMAP_THRESHOLD, _LARGEST_IN_HEAP), (_TRIM_THRESHOLD, _NEVER))
    )
