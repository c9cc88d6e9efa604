"""Variables of the environment that change numbers or speed are known by value, wherever they are put."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.extras import skip_without
from training.record.environment import collect_decisive_environment, collect_environment, select_decisive

_PLACES = ["CUDA_VISIBLE_DEVICES", "HOME", "NCCL_DEBUG_FILE", "NCCL_SOCKET_IFNAME", "PYTHONPATH", "TORCH_HOME"]
"""Where something is, and what is told of it."""


@pytest.mark.parametrize(
    "name",
    [
        "GLIBC_TUNABLES", "LD_AUDIT", "NCCL_ALGO", "ONEDNN_DEFAULT_FPMATH_MODE", "PYTHONDEVMODE", "PYTHONMALLOC",
        "PYTHONTRACEMALLOC", "TORCHDYNAMO_DISABLE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TRITON_INTERPRET",
        *_PLACES,
    ],
)  # fmt: skip
def test_a_variable_that_changes_numbers_or_speed_is_known_and_no_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = collect_environment()
    assert name not in before
    monkeypatch.setenv(name, "1")
    assert collect_environment() == before | ({} if name in _PLACES else {name: "1"})


@pytest.mark.parametrize("name", ["NCCL_CONF_FILE", "NCCL_TOPO_FILE"])
def test_of_a_file_of_settings_it_counts_what_stands_in_it_and_not_where_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for number, content in enumerate(("NCCL_ALGO=Ring", "NCCL_ALGO=Ring", "NCCL_ALGO=Tree")):
        file = tmp_path / str(number)
        file.write_text(content)
        monkeypatch.setenv(name, str(file))
        told.append(collect_environment()[name])
    assert told[0] == told[1] != told[2]
    monkeypatch.setenv(name, str(tmp_path / "gone"))
    assert collect_environment()[name] == "a file that cannot be read"


def test_bytes_that_are_no_text_are_told_apart_and_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    for value in (b"a\xff", b"a\xfe", b"a\x1b[2J\n"):
        monkeypatch.setenv("OMP_ANYTHING", os.fsdecode(value))
        told.append(collect_environment()["OMP_ANYTHING"])
        assert told[-1].encode().decode().isprintable()
    assert told == ["a\\udcff", "a\\udcfe", "a\\x1b[2J\\n"]


@pytest.mark.parametrize("package", ["sklearn", "lightning_fabric", "deepspeed"])
def test_what_a_package_sets_when_it_is_imported_is_no_other_setting(package: str) -> None:
    # Whoever starts a stage may have imported it, and whoever starts the next one not.
    skip_without(package)
    code = f"""
import os
from training.record.environment import collect_decisive_environment, collect_environment, select_decisive
names, before = set(os.environ), collect_environment()
import {package}
assert set(os.environ) > names, "it sets nothing any more"
assert collect_environment() == before
"""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("KMP_", "PYTORCH_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=found, cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_ranks_set_by_themselves_counts_where_somebody_else_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = collect_decisive_environment()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # A product may then be added up otherwise, in a training that is not exact.
    assert collect_decisive_environment() == before | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    # In a rank's record nobody can tell who set it.
    assert select_decisive(collect_environment()) == before
