"""What a GPU's arithmetic could reach at most, from NVIDIA's data sheets: the denominator of MFU."""

import re
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense peak of one GPU, TFLOP/s, without structured sparsity; None where it has no such hardware."""

    pattern: str
    """Regular expression for the whole name that NVML gives, without its vendor and its memory size."""
    fp32: float | None
    """Ordinary cores: what torch uses for fp32 unless TF32 is switched on."""
    tf32: float | None
    bf16: float | None
    """Tensor cores, sums in fp32, as torch uses them; so with fp16."""
    fp16: float | None
    source: str


_PEAKS = (
    Peak("T4", 8.1, None, None, 65.0, "NVIDIA T4 data sheet, 2019"),
    Peak("V100-SXM2", 15.7, None, None, 125.0, "NVIDIA V100 data sheet, 2020"),
    Peak("V100-PCIE", 14.0, None, None, 112.0, "NVIDIA V100 data sheet, 2020"),
    Peak("V100S-PCIE", 16.4, None, None, 130.0, "NVIDIA V100 data sheet, 2020"),
    Peak("A10", 31.2, 62.5, 125.0, 125.0, "NVIDIA A10 data sheet, 2021"),
    Peak("A10G", 35.0, 35.0, 70.0, 70.0, "NVIDIA A10G data sheet, 2021"),
    Peak("A30", 10.3, 82.0, 165.0, 165.0, "NVIDIA A30 data sheet, 2021"),
    Peak("A40", 37.4, 74.8, 149.7, 149.7, "NVIDIA A40 data sheet, 2021"),
    Peak("A100-(SXM4|PCIE)|A100 80GB PCIe", 19.5, 156.0, 312.0, 312.0, "NVIDIA A100 data sheet, 2021"),
    Peak("RTX A6000", 38.7, 77.4, 154.8, 154.8, "NVIDIA GA102 whitepaper, v2"),
    Peak("RTX 3090", 35.6, 35.6, 71.0, 71.0, "NVIDIA GA102 whitepaper, v2"),
    Peak("RTX 4090", 82.6, 82.6, 165.2, 165.2, "NVIDIA Ada whitepaper, v2"),
    Peak("RTX 6000 Ada Generation", 91.1, 182.1, 364.2, 364.2, "NVIDIA Ada for professionals whitepaper, v1.1"),
    Peak("L4", 30.3, 60.0, 121.0, 121.0, "NVIDIA L4 data sheet, 2023"),
    Peak("L40S", 91.6, 183.0, 362.05, 362.05, "NVIDIA L40S data sheet, 2023"),
    # From here on the sheets give the figures with sparsity, twice as much.
    Peak("H100 80GB HBM3", 67.0, 494.5, 989.5, 989.5, "NVIDIA H100 data sheet"),
    Peak("H100 PCIe", 51.0, 378.0, 756.5, 756.5, "NVIDIA H100 PCIe data sheet"),
    Peak("H100 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H100 data sheet, 2024"),
    Peak("H200", 67.0, 494.5, 989.5, 989.5, "NVIDIA H200 data sheet, 2024"),
    Peak("H200 NVL", 60.0, 417.5, 835.5, 835.5, "NVIDIA H200 data sheet, 2024"),
    # Public figures disagree about fp32 (75 or 80) and TF32 (1,100 or 1,125).
    Peak("B200", None, None, 2250.0, 2250.0, "NVIDIA HGX B200 data sheet, 2025"),
)
_VENDOR = re.compile(r"^(NVIDIA|Tesla|GeForce)\s+", re.IGNORECASE)
_MEMORY_SIZE = re.compile(r"[ -]\d+ ?GB$", re.IGNORECASE)


def find_peak(gpu_name: str) -> Peak | None:
    """Return the data sheet's figures for a GPU by the name that NVML gives; None if the name is not exactly known.

    A part of a GPU (MIG), a laptop's or a cloud's variant is another GPU, whose figures are not guessed.
    """
    name = gpu_name.strip()
    while (shorter := _VENDOR.sub("", name)) != name:
        name = shorter
    names = {name, _MEMORY_SIZE.sub("", name)}
    found = [peak for peak in _PEAKS if any(re.fullmatch(peak.pattern, one, re.IGNORECASE) for one in names)]
    return found[0] if len(found) == 1 else None


def find_peak_tflops(gpu_name: str, precision: str) -> float | None:
    """Return the dense peak (TFLOP/s) of a GPU at `fp32`, `tf32`, `bf16` or `fp16`; None where it is not known."""
    peak = find_peak(gpu_name)
    if peak is None:
        return None
    return {"fp32": peak.fp32, "tf32": peak.tf32, "bf16": peak.bf16, "fp16": peak.fp16}[precision]
