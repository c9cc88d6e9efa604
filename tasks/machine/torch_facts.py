"""What the installed torch can use of this machine's GPUs: `python -m tasks.machine.torch_facts` asks torch itself.

In a process of its own, since torch takes seconds to import; only where there are GPUs, and once for a machine.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

from ddp_audit.process.redaction import shorten
from tasks.process.failure import ResourceError
from tasks.records.facts import Record
from training.process.files import write_json

_KEPT = Path(".work/torch.json")
_LONGEST_SECONDS = 120.0
_MAX_PROBLEM_CHARACTERS = 300


class TorchFacts(Record):
    """What torch says of itself and of the GPUs."""

    version: str
    """As torch has it, such as 2.15.0+cu132."""
    cuda: str | None
    """CUDA that it was built for; None for a build for CPUs."""
    arch_list: tuple[str, ...]
    """What it has code for: sm_90 for GPUs of compute capability 9.0, compute_90 for these and all later ones."""
    num_gpus: int
    """GPUs that it finds."""
    problem: str | None
    """What it said when it was to use them; None if it can."""


def fetch_torch_facts(machine_digest: str) -> TorchFacts:
    """Return what torch says on a machine of this digest; kept in .work/ unless torch could not use the GPUs."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(_KEPT.read_bytes())
        if kept["machine"] == machine_digest:
            return TorchFacts.model_validate(kept["torch"])
    facts = _ask_torch()
    if facts.problem is None and facts.num_gpus:
        write_json(_KEPT, {"machine": machine_digest, "torch": facts.model_dump(mode="json")})
    return facts


def _ask_torch() -> TorchFacts:
    try:
        result = subprocess.run(
            [sys.executable, "-m", "tasks.machine.torch_facts"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        why = str(getattr(error, "stderr", None) or error).strip().rpartition("\n")[2]
        raise ResourceError(
            f"torch does not start here: {why}; unset LD_LIBRARY_PATH, or unload what brings another CUDA"
        ) from error
    return TorchFacts.model_validate_json(result.stdout.splitlines()[-1])


def _collect_torch_facts() -> TorchFacts:
    import torch

    problem = None
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        problem = shorten(" ".join(str(error).split()), limit=_MAX_PROBLEM_CHARACTERS)
    return TorchFacts(
        version=torch.__version__,
        cuda=torch.version.cuda,
        arch_list=tuple(torch.cuda.get_arch_list()),
        num_gpus=0 if problem else torch.cuda.device_count(),
        problem=problem,
    )


if __name__ == "__main__":
    sys.stdout.write(_collect_torch_facts().model_dump_json() + "\n")
