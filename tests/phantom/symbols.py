"""What the installed torch wants of CUDA's libraries, and what becomes of it where no C source here answers."""

import re
import subprocess
from pathlib import Path

LIBRARIES = (
    "libc10_cuda.so",
    "libcaffe2_nvrtc.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
)
"""Of torch/lib/."""
_REPLACED = re.compile(r"(__)?cuda[A-Z]\w*|cublas\w+|cudnn\w+|cusolver\w+|nccl\w+|nvml\w+|cu[A-Z]\w+")
_LEFT = re.compile(r"__cuda(Register|Unregister|PushCall|PopCall)\w*|cuFile\w+")
"""Of what the wheel brings itself and needs no card: code that registers its kernels, and files."""
_BY_NAME = re.compile(rb"\0((?:cu|nvml)[A-Z]\w+)(?=\0)")
"""Functions of the driver and of NVML that torch looks up by name, so that nm does not see them."""

_LISTS = Path(__file__).parent / "lists"
KERNELS = frozenset((_LISTS / "kernels.txt").read_text().split())
"""Counted as a launch."""
SILENT = frozenset((_LISTS / "silent.txt").read_text().split())
"""Succeed, and there is nothing to answer."""
_NOT_SUPPORTED = {"cublas": 15, "cudnn": 3000, "cusolver": 9, "nccl": 5, "nvml": 3, "cu": 801}
"""What the rest returns, after it has said its name: CUBLAS_STATUS_NOT_SUPPORTED, ncclInvalidUsage, and so on."""


def list_wanted(torch_lib):
    """Return the functions of CUDA's libraries and of the driver, from cuBLAS to NVML, that torch's libraries want."""
    wanted = set()
    for library in LIBRARIES:
        wanted |= list_symbols(torch_lib / library, "--undefined-only")
    by_name = {name.decode() for name in _BY_NAME.findall((torch_lib / "libc10_cuda.so").read_bytes())}
    return {name for name in wanted | by_name if _REPLACED.fullmatch(name) and not _LEFT.fullmatch(name)}


def list_symbols(path, which):
    """Return the functions of an object file or a library: `--undefined-only` or `--defined-only`."""
    dynamic = ["-D"] if path.suffix != ".o" else []
    said = subprocess.run(["nm", *dynamic, which, "-P", path], capture_output=True, text=True, check=True).stdout
    return {line.split()[0].split("@")[0] for line in said.splitlines()}


def make_source(missing):
    """Return C that defines these functions: counted, silent, or as one that has no answer and says so."""
    lines = ['#include "phantom.h"']
    for name in sorted(missing):
        if name in KERNELS:
            body = "phantom_touch(phantom_device()); phantom_count(LAUNCHES); return 0;"
        elif name in SILENT:
            body = "return 0;"
        else:
            code = next(code for prefix, code in _NOT_SUPPORTED.items() if name.lstrip("_").startswith(prefix))
            body = f'phantom_unanswered("{name}"); return {code};'
        lines.append(f"int {name}(void) {{ {body} }}")
    return "\n".join(lines) + "\n"
