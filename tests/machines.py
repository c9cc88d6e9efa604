"""Machines that are not there, as the stage `fingerprint` would describe them."""

from tasks.records.facts import GpuFacts
from tasks.records.manifests import MachineFile


def make_machine(*, num_gpus=0, memory_gib=15.0):
    """Return a machine with so many GPUs, each with so much memory, and two CPUs."""
    return MachineFile(
        digest="this machine", gpus=[GpuFacts(name="T4", memory_gib=memory_gib)] * num_gpus, num_gpus=num_gpus,
        driver=None, cpu="a cpu", num_cpus=2, os="Linux", architecture="x86_64", versions={},
    )  # fmt: skip
