"""What a machine is: GPUs, driver, CPU and versions; torch is not imported for it."""

import importlib.metadata
import platform
import sys
from pathlib import Path

from tasks.machine.gpu_facts import read_compute_capability
from tasks.machine.gpus import open_gpus
from tasks.machine.host_facts import list_usable_cpus
from tasks.records.facts import GpuFacts
from tasks.records.fingerprint import MachineFile
from training.process.files import digest_json

PACKAGES = ("torch", "torchvision", "transformers", "numpy", "safetensors")
"""Those that compute, or read what is computed with."""


def collect_machine_facts() -> MachineFile:
    """Return GPUs, driver, CPU and versions, and under `digest` the sha256 of them all."""
    gpus, driver = _collect_gpu_facts()
    facts = MachineFile(
        digest="",
        gpus=gpus,
        num_gpus=len(gpus),
        driver=driver,
        cpu=_read_cpu_name(),
        num_cpus=len(list_usable_cpus()),
        os=platform.system(),
        architecture=platform.machine(),
        versions={"python": platform.python_version(), **{one: importlib.metadata.version(one) for one in PACKAGES}},
    )
    return facts.model_copy(update={"digest": digest_json(facts.content(exclude={"digest"}))})


def _collect_gpu_facts() -> tuple[list[GpuFacts], str | None]:
    """Return the NVIDIA GPUs that a process started from here may use, and the driver's version."""
    import pynvml

    with open_gpus() as opened:
        facts = [
            GpuFacts(
                name=pynvml.nvmlDeviceGetName(handle),
                memory_gib=round(pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30, 1),
                compute_capability=read_compute_capability(handle),
            )
            for handle in opened.handles
        ]
        return facts, opened.driver


def _read_cpu_name() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
