"""The `python` of a warm environment: asks tests/warm/server.py for a process, and stands for it to who started it.

Written into the environment's bin/python behind a line with the interpreter, SOCKET, REAL, INHERITED and NO_MATTER.
Whatever is no stage, torchrun or rank, and whatever was told something that an interpreter looks at when it starts, is
started anew.
"""

import _signal
import _socket
import marshal
import os
import sys

FORKED = ("tasks.", "training", "benchmarks.", "tests.phantom.", "tests.training.forked_ranks", "torch.distributed.run")


def _is_forked(words):
    rest = [word for word in words if word != "-u"]
    looked_at = {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "HF_"))}
    for name in NO_MATTER:  # noqa: F821
        looked_at.pop(name, None)
    if looked_at.get("HF_HUB_OFFLINE") == "1":  # as the server was started with, whoever asks
        looked_at.pop("HF_HUB_OFFLINE")
    return len(rest) > 1 and rest[0] == "-m" and rest[1].startswith(FORKED) and looked_at == INHERITED  # noqa: F821


def _ask(words):
    """Have the process run to its end; return its exit code."""
    pid, came = 0, []

    def pass_on(number, _):
        # The process may say who it is, and be asked to end, before the server has said it here.
        if not pid:
            came.append(number)
            return
        try:  # noqa: SIM105  (contextlib takes a millisecond of every start)
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has just ended by itself

    for number in (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1):
        _signal.signal(number, pass_on)
    asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asked.connect(SOCKET)  # noqa: F821
    umask = os.umask(0o077)
    os.umask(umask)
    told = marshal.dumps((sys.argv[0], words, dict(os.environ), os.getcwd(), umask, os.sched_getscheduler(0)))
    handles = b"".join(handle.to_bytes(4, sys.byteorder) for handle in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handles)]
    asked.sendmsg([len(told).to_bytes(8, "little")], rights)
    asked.sendall(told)
    told_pid = asked.recv(8)
    if not told_pid:
        sys.exit("the warm server is gone: it started nothing")
    pid = int.from_bytes(told_pid, "little")
    for number in came:
        pass_on(number, None)
    ended = asked.recv(8)
    if not ended:
        os.kill(pid, _signal.SIGKILL)
        sys.exit("the warm server is gone: what it started was killed")
    return int.from_bytes(ended, "little", signed=True)


def _main():
    words = sys.argv[1:]
    if not _is_forked(words):
        os.execv(REAL, sys.argv)  # noqa: F821
    code = _ask(words)
    if code < 0:
        if -code != _signal.SIGKILL:  # which nobody can handle
            _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


_main()
