"""`python -m tests.warm.server SOCKET`: forks a process for every one that tests/warm/launcher.py asks for.

It has imported what is heavy and nothing of the project: each process takes `tasks` and `training` from its folder. A
process that is asked for runs until it ends by itself, or until whoever asked for it is gone: then it is killed.
"""

import atexit
import contextlib
import ctypes
import inspect
import marshal
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

from tests.warm.imports import import_ahead

_STARTER = "DDP_COMPARE_STARTER"
"""Says whom a stage descends from (tasks/process/stopping.py), which a process that is forked here does not."""


class _Server:
    """The processes that run, each with the connection to whoever asked for it."""

    def __init__(self, path):
        self._asking = {}
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        woken, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._listening, selectors.EVENT_READ, self._start)
        self._selector.register(woken, selectors.EVENT_READ, self._collect)
        self._woken = woken
        self._wakes = wakes

    def serve(self):
        """Serve; returns in a process that was asked for."""
        while True:
            for key, _ in self._selector.select():
                if key.data() is not None:
                    return

    def _start(self):
        asking, _ = self._listening.accept()
        size, handles, _, _ = socket.recv_fds(asking, 8, 3)
        with asking.makefile("rb") as file:
            told = file.read(int.from_bytes(size, "little"))
        if len(size) < 8 or len(told) < int.from_bytes(size, "little"):
            # The launcher was killed before it had said all.
            asking.close()
            for handle in handles:
                os.close(handle)
            return None
        pid = os.fork()
        if pid == 0:
            _become(handles, *marshal.loads(told))
            return True
        for handle in handles:
            os.close(handle)
        self._asking[pid] = asking
        self._selector.register(asking, selectors.EVENT_READ, lambda: self._forsake(pid))
        with contextlib.suppress(ConnectionError):  # who was killed meanwhile is forsaken as soon as that is read
            asking.sendall(pid.to_bytes(8, "little"))
        return None

    def _forsake(self, pid):
        """Kill a process whose launcher was killed; one that has ended at the same moment is collected already."""
        asking = self._asking.pop(pid, None)
        if asking is None:
            return
        self._selector.unregister(asking)
        asking.close()
        os.kill(pid, signal.SIGKILL)

    def _collect(self):
        self._woken.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if asking := self._asking.pop(ended[0], None):
                    self._selector.unregister(asking)
                    with asking, contextlib.suppress(ConnectionError):
                        asking.sendall(os.waitstatus_to_exitcode(ended[1]).to_bytes(8, "little", signed=True))


def _become(handles, python, words, environment, folder, umask, policy):
    """Make of this process, a fresh fork, what `python WORDS` begins with."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for place, handle in enumerate(handles):
        os.dup2(handle, place)
    os.closerange(3, 4096)
    os.setsid()
    os.chdir(folder)
    os.umask(umask)
    if policy != os.sched_getscheduler(0):
        os.sched_setscheduler(0, policy, os.sched_param(0))
    os.environ.clear()
    os.environ.update({name: value for name, value in environment.items() if name != _STARTER})
    _show([python, *words], [f"{name}={value}" for name, value in os.environ.items()])
    tempfile.tempdir = None
    random.seed()
    sys.executable = python
    sys.path[0] = folder
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through="-u" in words)
    sys.argv = words[words.index("-m") + 1 :]


def _show(words, environment):
    """Have others read these in /proc as the command line and the environment that this process was started with.

    They are written over those of the server, which was given room for them (tests/warm/environment.py).
    """
    start_of_words, end_of_words, start, end = map(
        int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]
    )
    for parts, first, last in ((words, start_of_words, end_of_words), (environment, start, end)):
        text = b"".join(os.fsencode(part) + b"\0" for part in parts)
        assert len(text) <= last - first, f"{len(text)} bytes; there is room for {last - first}"
        ctypes.memset(first, 0, last - first)
        ctypes.memmove(first, text, len(text))


def _main():
    import_ahead([*os.environ["MODULES"].split(), "torch.distributed.run"])
    # torchrun looks several times at all frames that it runs in, and inspect for the module of each. For one that is in
    # no file it asks every module, of which there are thousands here: two seconds of every torchrun.
    inspect.modulesbyfile["<frozen runpy>"] = "runpy"
    server = _Server(sys.argv[1])
    print("ready", flush=True)
    server.serve()
    _end(_run(sys.argv[0]))


def _run(module):
    """Run the module to its end; return the exit code that an interpreter would end with."""
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _end(code):
    """End this process as an interpreter does, but for taking apart what was imported: that would copy its memory."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
