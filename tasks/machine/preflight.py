"""Whether this machine is fit to measure on right now, and what to change if it is not.

What is looked at and from where on it is too much stands in check_host.py and check_gpus.py.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.machine.check import Check
from tasks.machine.gpu_checks import check_gpus
from tasks.machine.host_checks import check_host
from tasks.params import Params

_log = logging.getLogger(__name__)

FIT = "fit to measure"
UNFIT = "not fit to measure"


def run_preflight(
    params: Params,
    machine: dict[str, Any],
    *,
    cells: Sequence[str],
    device: str,
    folder: Path,
    num_parameters: int | None = None,
) -> dict[str, Any]:
    """Return the verdict on this machine and the checks that it comes from, ready for JSON; takes about a second.

    `machine` is what the stage `fingerprint` found, `cells` are those whose ranks will wait side by side, `device` is
    "cpu" or "cuda", `folder` is where they will write. Without `num_parameters` memory is judged without the model.
    Run it before the ranks start: they belong to this process and would not count as load.
    """
    checks = check_host(params, cells=cells, device=device, folder=folder, num_parameters=num_parameters)
    if device == "cuda":
        checks += check_gpus([params.cells[cell].ranks_per_node for cell in cells], num_parameters=num_parameters)
    else:
        checks.append(
            Check.not_checked("GPUs", f"the cells run on the CPU; this machine has {machine['num_gpus']} GPUs")
        )
    num_nodes = max(params.cells[cell].num_nodes for cell in cells)
    if num_nodes > 1:
        checks.append(Check.not_checked("other nodes", f"all this is of the head, one of {num_nodes} nodes"))
    return judge_checks(checks)


def judge_checks(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the verdict with its checks, ready for JSON, and log it: fit unless a check warns."""
    warnings = [check for check in checks if check.verdict == "warning"]
    unread = [check.name for check in checks if check.verdict == "not checked"]
    if warnings:
        for check in warnings:
            _log.warning("%s: %s: %s; %s", UNFIT, check.name, check.found, check.remedy)
    else:
        num_ok = len(checks) - len(unread)
        _log.info("%s: %d checks passed%s", FIT, num_ok, f", not checked: {', '.join(unread)}" if unread else "")
    return {"verdict": UNFIT if warnings else FIT, "checks": [check.as_json() for check in checks]}
