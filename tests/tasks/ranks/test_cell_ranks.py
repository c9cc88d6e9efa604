"""Where the ranks of a cell run."""

import contextlib
import shutil
import threading

import pytest

from tasks.params import load_params
from tasks.process.failure import ExitCode, ResourceError
from tasks.ranks.cell_ranks import choose_device, run_ranks
from tests.machines import make_machine
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import parse_config


def test_ranks_compute_on_gpus_where_there_are_any(project):
    params = load_params(project / "params.yaml")
    assert choose_device("1proc", params, make_machine(num_gpus=1, num_cpus=8)) == "cuda"
    assert choose_device("2proc", params, make_machine(num_cpus=2)) == "cpu"


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("num_left", [0, 12_288])
def test_a_disk_that_takes_neither_a_checkpoint_nor_a_word_about_it_is_still_exit_code_4(
    small_disk, tmp_path, num_left
):
    config = make_config(
        small_disk / "work", make_tiny_model(tmp_path / "model"), [make_slice(tmp_path / "slice", num_rows=45)],
        checkpoint_every_steps=1,
    )  # fmt: skip

    def fill(events):
        if any(event["event"] == "launch_started" for event in events):
            # The rank may take some of it in the meantime: the disk is full then, too.
            with contextlib.suppress(OSError):
                (small_disk / "filler").write_bytes(bytes(max(shutil.disk_usage(small_disk).free - num_left, 0)))

    with pytest.raises(ResourceError) as caught:
        run_ranks(parse_config(config), launcher="torchrun", stop=threading.Event(), follow=fill)
    assert caught.value.exit_code == ExitCode.RESOURCES == 4
    assert "\n" not in str(caught.value)
