"""What a report says of a cell whose ranks were on several machines."""

from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.collect import collect_results
from tasks.reporting.sections.compared import tabulate_nodes, tabulate_work
from tests.tasks.reporting.comparison import edit_json, outputs_of, write_comparison
from tests.tasks.reporting.rendered import html_of, markdown_of

NODE: dict[str, Any] = {
    "node_rank": 0, "host": "alpha", "cpu": "EPYC", "num_cpus": 1, "gpus": [], "driver": None, "num_ranks": 1,
    "address": "10.0.0.1", "interface": "eth0", "gpu_energy_joules": None, "versions": {"torch": "2.15.0"},
}  # fmt: skip
OTHER = NODE | {"node_rank": 1, "host": "beta", "address": "10.0.0.2", "gpu_energy_joules": 12_345.0}


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """A comparison whose second cell has a rank on each of two nodes, with one CPU each."""
    written = write_comparison(tmp_path)
    edit_json(tmp_path / "runs" / "2proc" / "run.json", num_nodes=2, nodes=[NODE, OTHER])
    edit_json(tmp_path / "machine.json", num_cpus=1)
    return written


def test_each_node_has_a_row_with_what_is_known_of_it(tmp_path: Path, params: dict[str, Any]) -> None:
    results = collect_results(outputs_of(tmp_path, params))
    table = tabulate_nodes(results)
    assert table.rows == [
        ["2proc", "0", "alpha", "1", "EPYC", "1", "none", "10.0.0.1 (eth0)", "n/a"],
        ["2proc", "1", "beta", "1", "EPYC", "1", "none", "10.0.0.2 (eth0)", "12.3 kJ"],
    ]
    assert [row[2] for row in tabulate_work(results).rows] == ["1", "2 on 2 nodes"]
    assert "beta" in markdown_of(results)
    assert ">Nodes</caption>" in html_of(results)


def test_a_device_of_its_own_is_counted_on_each_node(tmp_path: Path, params: dict[str, Any]) -> None:
    def verdict() -> tuple[str, str]:
        gates = collect_results(outputs_of(tmp_path, params)).gates
        (gate,) = [one for one in gates if "needed" in one.findings[0].numbers]
        return gate.verdict, gate.compared

    assert verdict() == ("passed", "1proc 1 of 1 CPUs; 2proc 1 of 1 CPUs per node")
    edit_json(tmp_path / "runs" / "2proc" / "run.json", nodes=[NODE, OTHER | {"num_cpus": 0}])
    assert verdict()[0] == "failed"
    assert "2proc needs 1 CPUs per node and shares 0" in verdict()[1]
