"""Where the ranks of a cell run."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.params import Params
from tasks.stage.failure import ExitCode, ResourceError
from tasks.stage.ranks import choose_device


def test_more_ranks_than_gpus_are_refused_with_the_remedy_unless_asked_for(project: Path) -> None:
    raw = YAML(typ="safe", pure=True).load(project / "params.yaml")
    machine = {"num_gpus": 1, "num_cpus": 8}
    params = Params.model_validate(raw)
    assert choose_device("1proc", params, machine) == "cuda"
    with pytest.raises(ResourceError, match=r"cells\.2proc\.world_size=2 .* 1 GPUs .*oversubscribe: true") as caught:
        choose_device("2proc", params, machine)
    assert caught.value.exit_code == ExitCode.RESOURCES
    raw["cells"]["2proc"]["oversubscribe"] = True
    assert choose_device("2proc", Params.model_validate(raw), machine) == "cuda"
    assert choose_device("2proc", params, {"num_gpus": 0, "num_cpus": 2}) == "cpu"
