"""Make this machine a node: `python -m tasks.ranks.launchers.nodes.join HOST:PORT`, in a copy of the head's project.

Waits at the head's door, takes part in every launch that wants it, and waits again: one start serves a whole
comparison.
"""

import argparse
import logging
import os
import socket
import threading
import time
import uuid
from multiprocessing import AuthenticationError
from typing import Any

from tasks.process.failure import ConfigurationError, ResourceError, exit_with_one_line
from tasks.process.logs import configure_logging
from tasks.ranks.launchers.nodes.line import KEY, Line, LostError, knock, parse_address
from tasks.ranks.launchers.nodes.member import Member

_log = logging.getLogger(__name__)

_SECONDS_BETWEEN_KNOCKS = 1.0


def _main() -> None:
    arguments = _parse_arguments()
    configure_logging()
    key = arguments.key or os.environ.get(KEY)
    if not key:
        raise ConfigurationError(f"--key: missing; allowed: what the head prints, or {KEY} as on the head")
    head = parse_address(arguments.head)
    me = {"node": uuid.uuid4().hex, "host": socket.gethostname(), "node_rank": arguments.node_rank}
    _log.info("waiting for work at %s", arguments.head)
    while True:
        line, told = _wait_for_work(head, key, me, patience_seconds=arguments.patience)
        _log.info("node %d of %d, %d ranks here", told["node_rank"], told["num_nodes"], told["ranks_per_node"])
        me["node_rank"] = told["node_rank"]
        member = Member(line, told, head=head, key=key)
        # Meanwhile another cell's ranks may be wanted here as well: they wait side by side while they are measured.
        threading.Thread(target=member.serve, name="member", daemon=True).start()


def _wait_for_work(
    head: tuple[str, int], key: str, me: dict[str, Any], *, patience_seconds: float
) -> tuple[Line, dict[str, Any]]:
    """Return a line and what is to be run there; raises ResourceError if nobody opens for too long."""
    waited_since = time.monotonic()
    while True:
        try:
            line = knock(head, key)
        except AuthenticationError:
            raise ConfigurationError(f"--key: {head[0]}:{head[1]} has another; allowed: what the head prints") from None
        if line is not None:
            waited_since = time.monotonic()
            try:
                line.say(**me)
                while (told := line.hear(_SECONDS_BETWEEN_KNOCKS)) is None:
                    pass
                return line, told
            except LostError:
                line.close()
        if time.monotonic() - waited_since > patience_seconds:
            raise ResourceError(f"{head[0]}:{head[1]}: nobody opened for {patience_seconds:.0f} s; start the head")
        time.sleep(_SECONDS_BETWEEN_KNOCKS)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="join", description=__doc__)
    parser.add_argument("head", metavar="HOST:PORT", help="nodes.rendezvous of the head's params.yaml")
    parser.add_argument("--key", help=f"what the head prints; or {KEY}")
    parser.add_argument("--node-rank", type=int, help="the number to have, from 1; else the next that is free")
    parser.add_argument("--patience", type=float, default=86_400.0, help="seconds to wait for a head (default a day)")
    return parser.parse_args()


if __name__ == "__main__":
    exit_with_one_line(_main, name="join")
