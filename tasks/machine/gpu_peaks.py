"""What a GPU's arithmetic could reach at most, from NVIDIA's data sheets: the denominator of MFU."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peak:
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
    Peak(pattern="T4", fp32=8.1, tf32=None, bf16=None, fp16=65.0, source="NVIDIA T4 data sheet, 2019"),
    Peak(pattern="V100-SXM2", fp32=15.7, tf32=None, bf16=None, fp16=125.0, source="NVIDIA V100 data sheet, 2020"),
    Peak(pattern="V100-PCIE", fp32=14.0, tf32=None, bf16=None, fp16=112.0, source="NVIDIA V100 data sheet, 2020"),
    Peak(pattern="V100S-PCIE", fp32=16.4, tf32=None, bf16=None, fp16=130.0, source="NVIDIA V100 data sheet, 2020"),
    Peak(pattern="A10", fp32=31.2, tf32=62.5, bf16=125.0, fp16=125.0, source="NVIDIA A10 data sheet, 2021"),
    Peak(pattern="A30", fp32=10.3, tf32=82.0, bf16=165.0, fp16=165.0, source="NVIDIA A30 data sheet, 2021"),
    Peak(pattern="A40", fp32=37.4, tf32=74.8, bf16=149.7, fp16=149.7, source="NVIDIA A40 data sheet, 2021"),
    Peak(
        pattern="A100-(SXM4|PCIE)|A100 80GB PCIe",
        fp32=19.5,
        tf32=156.0,
        bf16=312.0,
        fp16=312.0,
        source="NVIDIA A100 data sheet, 2021",
    ),
    Peak(pattern="RTX A6000", fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8, source="NVIDIA GA102 whitepaper, v2"),
    Peak(pattern="RTX 3090", fp32=35.6, tf32=35.6, bf16=71.0, fp16=71.0, source="NVIDIA GA102 whitepaper, v2"),
    Peak(pattern="RTX 4090", fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2, source="NVIDIA Ada whitepaper, v2"),
    Peak(
        pattern="RTX 6000 Ada Generation",
        fp32=91.1,
        tf32=182.1,
        bf16=364.2,
        fp16=364.2,
        source="NVIDIA Ada for professionals whitepaper, v1.1",
    ),
    Peak(pattern="L4", fp32=30.3, tf32=60.0, bf16=121.0, fp16=121.0, source="NVIDIA L4 data sheet, 2023"),
    Peak(pattern="L40S", fp32=91.6, tf32=183.0, bf16=362.05, fp16=362.05, source="NVIDIA L40S data sheet, 2023"),
    # From here on the sheets give the figures with sparsity, twice as much.
    Peak(pattern="H100 80GB HBM3", fp32=67.0, tf32=494.5, bf16=989.5, fp16=989.5, source="NVIDIA H100 data sheet"),
    Peak(pattern="H100 PCIe", fp32=51.0, tf32=378.0, bf16=756.5, fp16=756.5, source="NVIDIA H100 PCIe data sheet"),
    Peak(pattern="H100 NVL", fp32=60.0, tf32=417.5, bf16=835.5, fp16=835.5, source="NVIDIA H100 data sheet, 2024"),
    Peak(pattern="H200", fp32=67.0, tf32=494.5, bf16=989.5, fp16=989.5, source="NVIDIA H200 data sheet, 2024"),
    Peak(pattern="H200 NVL", fp32=60.0, tf32=417.5, bf16=835.5, fp16=835.5, source="NVIDIA H200 data sheet, 2024"),
    # Public figures disagree about fp32 (75 or 80) and TF32 (1,100 or 1,125).
    Peak(pattern="B200", fp32=None, tf32=None, bf16=2250.0, fp16=2250.0, source="NVIDIA HGX B200 data sheet, 2025"),
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
    figures = {"fp32": peak.fp32, "tf32": peak.tf32, "bf16": peak.bf16, "fp16": peak.fp16}
    if precision not in figures:
        raise ValueError(f"precision: got {precision!r}; allowed: {', '.join(figures)}")
    return figures[precision]
