"""`make nodes-demo`: two raylets on this machine, and a small comparison on them."""

import subprocess
import sys
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from tests.ray_cluster import find_own_address, two_raylets
from tests.workspace import SMALL, Workspace

_PROJECT = Path(__file__).parents[1]
CELLS = YAML(typ="safe", pure=True).load("""
1node: {strategy: single, world_size: 1}
2nodes: {strategy: ddp, world_size: 2, launcher: ray, num_nodes: 2}
""")


def main():
    """Run it; return the flow's exit code."""
    with tempfile.TemporaryDirectory(prefix="nodes-demo-") as folder:
        here = find_own_address()
        starts = (subprocess.Popen, subprocess.Popen)
        with two_raylets(Path(folder), addresses=(here, here), starts=starts) as cluster:
            changes = {"ray": {"address": cluster.address}, **SMALL, "cells": CELLS}
            demo = Workspace.create(Path(folder) / "demo", project=_PROJECT, changes=changes)
            command = [sys.executable, "-m", "flows"]
            return subprocess.call(
                command, cwd=demo.folder, env=demo.environment(**cluster.environment, **cluster.mark)
            )


if __name__ == "__main__":
    sys.exit(main())
