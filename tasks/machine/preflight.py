"""Whether this machine is fit to measure on right now, and what to change if it is not.

What is looked at and from where on it is too much stands in host_checks.py and gpu_checks.py.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from tasks.machine.gpu_checks import check_gpus
from tasks.machine.host_checks import check_host
from tasks.params import Params
from tasks.records.manifests import MachineFile
from tasks.records.measurement import Preflight, PreflightCheck

_log = logging.getLogger(__name__)


def run_preflight(
    params: Params,
    machine: MachineFile,
    *,
    cells: Sequence[str],
    device: str,
    folder: Path,
    num_parameters: int | None = None,
) -> Preflight:
    """Return the verdict on this machine and the checks that it comes from; takes about a second.

    `machine` is what the stage `fingerprint` found, `cells` are those whose ranks will wait side by side, `device` is
    "cpu" or "cuda", `folder` is where they will write. Without `num_parameters` memory is judged without the model.
    Run it before the ranks start: they belong to this process and would not count as load.
    """
    checks = check_host(params, cells=cells, device=device, folder=folder, num_parameters=num_parameters)
    if device == "cuda":
        checks += check_gpus([params.cells[cell].ranks_per_node for cell in cells], num_parameters=num_parameters)
    else:
        checks.append(
            PreflightCheck.not_checked(
                "GPUs", "cpu", f"the cells run on the CPU; this machine has {machine.num_gpus} GPUs"
            )
        )
    num_nodes = max(params.cells[cell].num_nodes for cell in cells)
    if num_nodes > 1:
        why = f"all this is of the head, one of {num_nodes} nodes"
        checks.append(PreflightCheck.not_checked("other nodes", "head_alone", why))
    return judge_checks(checks)


def judge_checks(checks: Sequence[PreflightCheck]) -> Preflight:
    """Return the verdict with its checks and log it: fit unless a check warns."""
    warnings = [check for check in checks if check.verdict == "warning"]
    unread = [check.name for check in checks if check.verdict == "not checked"]
    if warnings:
        for check in warnings:
            _log.warning("not fit to measure: %s: %s; %s", check.name, check.found, check.remedy)
    else:
        num_ok = len(checks) - len(unread)
        _log.info("fit to measure: %d checks passed%s", num_ok, f", not checked: {', '.join(unread)}" if unread else "")
    return Preflight(verdict="not fit to measure" if warnings else "fit to measure", checks=list(checks))
