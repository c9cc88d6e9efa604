"""Variables of the environment that change numbers or speed: what a training, or what is kept of one, depends on."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from ddp_audit.process.redaction import redact, shorten

Value = TypeVar("Value")

_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDA_", "CUDNN_", "DNNL_", "FI_", "GLIBC_TUNABLES", "GOMP_", "KMP_", "LD_AUDIT", "LD_PRELOAD",
    "MALLOC_", "MKL_", "NCCL_", "NVIDIA_TF32_OVERRIDE", "OMP_", "ONEDNN_", "OPENBLAS_", "PYTHONDEVMODE",
    "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONTRACEMALLOC", "PYTHON_GIL", "PYTHON_JIT", "PYTORCH_", "TORCHDYNAMO_",
    "TORCHINDUCTOR_", "TORCH_", "TRITON_", "UCX_",
)  # fmt: skip
_PLACES = ("_DIR", "_DIRECTORY", "_FILE", "_HOME", "_PATH", "_ROOT", "_SOCKET_IFNAME", "_VISIBLE_DEVICES")
"""Endings of those that say where something is: they differ between machines that compute the same."""
_FILES_OF_SETTINGS = ("NCCL_CONF_FILE", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
"""Those that name a file which says how to compute or exchange: what stands in it counts, not where it is."""
_MOST_CHARACTERS = 200
_UNDECISIVE = (
    "NCCL_DEBUG", "OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
"""Beginnings of those that launchers, ranks and stages set by themselves, or that ask for logs alone."""
_SET_BY_IMPORTS = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""What joblib, scikit-learn, Lightning and DeepSpeed set when they are imported, for all that the process starts then:
how OpenMP begins in a fork and how a GPU is looked for. No number depends on it, and it is in no record."""
_SET_BY_RANKS = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_MODULE_LOADING": "LAZY",
}
"""What ranks, and torch in them, set where nobody has."""


def collect_environment() -> dict[str, str]:
    """Return those of this process by name, without secrets; of a file of settings the sha256 of what it holds."""
    results = {}
    for name in _FILES_OF_SETTINGS:
        if name in os.environ:
            try:
                results[name] = f"sha256 {hashlib.sha256(Path(os.environ[name]).read_bytes()).hexdigest()}"
            except (OSError, ValueError):
                results[name] = "a file that cannot be read"
    for name, value in os.environ.items():
        if value == _SET_BY_IMPORTS.get(name):
            continue
        if name.startswith(_PREFIXES) and not name.endswith(_PLACES):
            text = redact(shorten(value, limit=_MOST_CHARACTERS))
            # With escapes for what no page can show: a variable may hold any bytes.
            results[name] = "".join(
                char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
            )
    return dict(sorted(results.items()))


def collect_decisive_environment() -> dict[str, str]:
    """Return those on which what is computed and kept depends, for its key; taken before anything sets some itself."""
    return {name: value for name, value in collect_environment().items() if not name.startswith(_UNDECISIVE)}


def select_decisive(environment: Mapping[str, Value]) -> dict[str, Value]:
    """Return the same of what a rank recorded, which had set some by itself then."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_UNDECISIVE) and value != _SET_BY_RANKS.get(name)
    }
