"""The phantom as a library, made by the system's compiler from the headers of the installed packages."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.phantom.cards import make_header
from tests.phantom.symbols import KERNELS, SILENT, list_defined, list_wanted, make_source

_HERE = Path(__file__).parent
_SOURCES = ("machine", "together", "memory", "runtime", "driver", "nvml", "nccl", "cublas", "cusolver", "cudnn")
_HEADERS = ("cuda.h", "cuda_runtime_api.h", "cublas_v2.h", "cudnn.h", "cusolverDn.h", "nccl.h", "crt/host_defines.h")
_TOOLS = ("gcc", "nm")
_OTHER_NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Under which the driver and NVML are looked for."""


@dataclass(frozen=True, kw_only=True)
class Phantom:
    """The built library."""

    library: Path
    """Beside it, links with the names of the driver and of NVML."""

    def environment(self, card="H100-80", *, num_cards=1, counts=None):
        """Return what a process starts with that is to find these cards; others start from it with the same.

        In the folder `counts` every process leaves what tests/phantom/counts.py reads.
        """
        folder = str(self.library.parent)
        paths = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        given = {
            "LD_PRELOAD": str(self.library),
            "LD_LIBRARY_PATH": ":".join(paths),
            "PHANTOM_CARD": card,
            "PHANTOM_CARDS": str(num_cards),
        }
        if counts is not None:
            counts.mkdir(parents=True, exist_ok=True)
            given["PHANTOM_COUNTS"] = str(counts)
        return given


def find_missing():
    """Return what the machine lacks to build the phantom, or None if it has all."""
    tools = [name for name in _TOOLS if shutil.which(name) is None]
    if tools:
        return f"no {' and no '.join(tools)}"
    if not (_find_torch() / "libtorch_cuda.so").exists():
        return "torch is not the build for CUDA"
    folders = _find_include_folders()
    headers = [name for name in _HEADERS if not any((folder / name).exists() for folder in folders)]
    return f"no {' and no '.join(headers)} in the packages of NVIDIA" if headers else None


def build(folder):
    """Compile the phantom into a folder. CalledProcessError where that fails, which the compiler explains itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cards.h").write_text(make_header())
    # For device code, which there is none of; beside torch 2.11 no package brings it.
    (folder / "nv").mkdir(exist_ok=True)
    (folder / "nv" / "target").touch()
    objects = [_compile(_HERE / f"{name}.c", folder) for name in _SOURCES]
    generated = folder / "generated.c"
    # The lists too: what Triton compiles asks the driver for more than torch does.
    generated.write_text(make_source((list_wanted(_find_torch()) | KERNELS | SILENT) - list_defined(*objects)))
    objects.append(_compile(generated, folder))
    library = folder / "libphantom.so"
    subprocess.run(["gcc", "-shared", *objects, "-o", library, "-lpthread", "-ldl", "-lrt"], check=True)
    for name in _OTHER_NAMES:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(library.name)
    return Phantom(library=library)


def _compile(source, folder):
    target = folder / f"{source.stem}.o"
    includes = [f"-I{path}" for path in (_HERE, folder, *_find_include_folders())]
    subprocess.run(["gcc", "-c", "-O1", "-fPIC", "-Wall", "-Wextra", *includes, source, "-o", target], check=True)
    return target


def _find_torch():
    return _find_package("torch") / "lib"


def _find_include_folders():
    site = _find_package("torch").parent
    return [*sorted(site.glob("nvidia/*/include")), site / "triton/backends/nvidia/include"]


def _find_package(name):
    return Path(find_spec(name).origin).parent
