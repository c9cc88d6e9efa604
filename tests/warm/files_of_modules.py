"""Imported last, ahead: what inspect learns of the file of every module, so that no process that is forked looks again.

Whoever defines an operator of torch's asks it for the module of a frame, and it goes through all modules for one that
it does not know yet. Here those are thousands, and each that is looked at is copied into the memory of the process: a
rank took 0.13 seconds of a processor for that, and 0.04 where the path of each was known. A frame tells the name of its
module: who looks there takes none.
"""

import inspect
import sys
from types import FrameType

_search_all = inspect.getmodule


def find_module(given, _filename=None):
    """Return what inspect.getmodule does, of a frame without going through all modules."""
    if isinstance(given, FrameType):
        module = sys.modules.get(given.f_globals.get("__name__", ""))
        file = given.f_code.co_filename
        if module is not None and getattr(module, "__file__", None) == file == (_filename or file):
            return module
    return _search_all(given, _filename)


_search_all(sys._getframe())
inspect.getmodule = find_module
