"""The phantom as a library, made by the system's compiler from the headers of the installed packages."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.phantom.cards import make_header
from tests.phantom.symbols import KERNELS, SILENT, list_symbols, list_wanted, make_source

_HERE = Path(__file__).parent
_SOURCES = ("machine", "together", "memory", "runtime", "driver", "nvml", "nccl", "cublas", "cusolver", "cudnn")
_HEADERS = ("cuda.h", "cuda_runtime_api.h", "cublas_v2.h", "cudnn.h", "cusolverDn.h", "nccl.h", "crt/host_defines.h")
_TOOLS = ("gcc", "nm")
_OTHER_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Under which the driver and NVML are looked for."""


def make_environment(library, card="H100-80", *, num_cards=1):
    """Return what a process starts with that is to find these cards; others start from it with the same."""
    paths = [str(library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_PRELOAD": str(library),
        "LD_LIBRARY_PATH": ":".join(paths),
        "PHANTOM_CARD": card,
        "PHANTOM_CARDS": str(num_cards),
    }


def find_missing():
    """Return what the machine lacks to build the phantom, or None if it has all."""
    tools = [name for name in _TOOLS if shutil.which(name) is None]
    if tools:
        return f"no {' and no '.join(tools)}"
    if not (_find_torch() / "lib" / "libtorch_cuda.so").exists():
        return "torch is not the build for CUDA"
    folders = _find_include_folders()
    headers = [name for name in _HEADERS if not any((folder / name).exists() for folder in folders)]
    return f"no {' and no '.join(headers)} in the packages of NVIDIA" if headers else None


def build(folder):
    """Compile the phantom into a folder; return the library. CalledProcessError where that fails.

    Beside it are links with the names of the driver and of NVML.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cards.h").write_text(make_header())
    # For device code, which there is none of; beside torch 2.11 no package brings it.
    (folder / "nv").mkdir(exist_ok=True)
    (folder / "nv" / "target").touch()
    objects = [_compile(_HERE / f"{name}.c", folder) for name in _SOURCES]
    generated = folder / "generated.c"
    # The lists too: what Triton compiles asks the driver for more than torch does.
    missing = list_wanted(_find_torch() / "lib") | KERNELS | SILENT
    for path in objects:
        missing -= list_symbols(path, "--defined-only")
    generated.write_text(make_source(missing))
    objects.append(_compile(generated, folder))
    library = folder / "libphantom.so"
    subprocess.run(["gcc", "-shared", *objects, "-o", library, "-lpthread", "-ldl", "-lrt"], check=True)
    for name in _OTHER_NAMES:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    return library


def _compile(source, folder):
    target = folder / f"{source.stem}.o"
    includes = [f"-I{path}" for path in (_HERE, folder, *_find_include_folders())]
    subprocess.run(["gcc", "-c", "-O1", "-fPIC", "-Wall", "-Wextra", *includes, source, "-o", target], check=True)
    return target


def _find_torch():
    return Path(find_spec("torch").origin).parent


def _find_include_folders():
    site = _find_torch().parent
    return [*sorted(site.glob("nvidia/*/include")), site / "triton/backends/nvidia/include"]
