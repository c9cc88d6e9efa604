"""What a GPU's arithmetic could reach at most, from NVIDIA's data sheets: the denominator of MFU."""

import re
import tomllib
from pathlib import Path
from typing import NamedTuple


class Peak(NamedTuple):
    """Dense peak of one GPU, TFLOP/s, without structured sparsity; None where it has no such hardware."""

    pattern: str
    """Regular expression for the whole name that NVML gives, without its vendor and its memory size."""
    source: str
    fp32: float | None = None
    """Ordinary cores: what torch uses for fp32 unless TF32 is switched on."""
    tf32: float | None = None
    bf16: float | None = None
    """Tensor cores, sums in fp32, as torch uses them; so with fp16."""
    fp16: float | None = None


_PEAKS = [Peak(**peak) for peak in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["peaks"]]
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
    results = [peak for peak in _PEAKS if any(re.fullmatch(peak.pattern, item, re.IGNORECASE) for item in names)]
    return results[0] if len(results) == 1 else None


def find_peak_tflops(gpu_name: str, precision: str) -> float | None:
    """Return the dense peak (TFLOP/s) of a GPU at `fp32`, `tf32`, `bf16` or `fp16`; None where it is not known."""
    peak = find_peak(gpu_name)
    if peak is None:
        return None
    return {"fp32": peak.fp32, "tf32": peak.tf32, "bf16": peak.bf16, "fp16": peak.fp16}[precision]
