"""Variables of the environment that change numbers or speed are known by value, wherever they are put."""

import pytest

from training.record.environment import collect_decisive_environment, collect_environment, select_decisive

_KNOWN = """
GLIBC_TUNABLES LD_AUDIT NCCL_ALGO ONEDNN_DEFAULT_FPMATH_MODE PYTHONDEVMODE PYTHONMALLOC PYTHONTRACEMALLOC
TORCHDYNAMO_DISABLE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TRITON_INTERPRET
"""
_PLACES = "CUDA_VISIBLE_DEVICES HOME NCCL_DEBUG_FILE NCCL_SOCKET_IFNAME PYTHONPATH TORCH_HOME"
"""Where something is, and what is told of it."""


def test_variables_that_change_numbers_or_speed_are_known_and_no_others(monkeypatch):
    for name in f"{_KNOWN} {_PLACES}".split():
        monkeypatch.delenv(name, raising=False)
    before = collect_environment()
    for name in f"{_KNOWN} {_PLACES}".split():
        monkeypatch.setenv(name, "1")
    assert collect_environment() == before | dict.fromkeys(_KNOWN.split(), "1")


@pytest.mark.parametrize("name", ["NCCL_CONF_FILE", "NCCL_TOPO_FILE"])
def test_of_a_file_of_settings_it_counts_what_stands_in_it_and_not_where_it_is(name, tmp_path, monkeypatch):
    told = []
    for number, content in enumerate(("NCCL_ALGO=Ring", "NCCL_ALGO=Ring", "NCCL_ALGO=Tree")):
        file = tmp_path / str(number)
        file.write_text(content)
        monkeypatch.setenv(name, str(file))
        told.append(collect_environment()[name])
    assert told[0] == told[1] != told[2]
    monkeypatch.setenv(name, str(tmp_path / "gone"))
    assert collect_environment()[name] == "a file that cannot be read"


def test_what_ranks_set_by_themselves_counts_where_somebody_else_has_set_it(monkeypatch):
    before = collect_decisive_environment()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # A product may then be added up otherwise, in a training that is not exact.
    assert collect_decisive_environment() == before | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    # In a rank's record nobody can tell who set it.
    assert select_decisive(collect_environment()) == before
