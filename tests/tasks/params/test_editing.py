"""params.yaml rewritten by commands: cells that are left out, and keys that are set."""

import pytest

from tasks.params import load_params
from tasks.params.editing import change_params, find_refused, move_out
from tasks.process.failure import ConfigurationError

_STRATEGIES = ["1gpu", "ddp", "zero1", "zero2", "fsdp2", "fsdp2-bf16", "pipeline"]


@pytest.fixture
def preset(tmp_path, project):
    """The preset of all strategies, as a params.yaml of its own."""
    path = tmp_path / "params.yaml"
    path.write_text((project / "presets" / "strategies-2gpu.yaml").read_text())
    return path


def test_what_a_cell_cannot_do_is_its_reason_and_costs_no_other_cell(preset):
    text = preset.read_text().replace("  precision: bf16\n", "  precision: fp32\n  eval_every_steps: 5\n")
    text += "left_out: {}\n"
    preset.write_text(text.replace("ddp: {strategy: ddp, world_size: 2}", "ddp: {strategy: ddp, world_size: 3}"))
    refused = find_refused(preset)
    assert list(refused) == ["ddp", "fsdp2-bf16", "pipeline"]
    assert "does not split over cells.ddp.world_size=3" in refused["ddp"]
    move_out(preset, refused)
    params = load_params(preset)
    assert list(params.cells) == [name for name in _STRATEGIES if name not in refused]
    assert params.left_out == refused
    # What stands beside the cells is as it was written, remarks and numbers included.
    before, after = text.splitlines(), preset.read_text().splitlines()
    assert [line for line in before if line not in after] == [
        line for line in before if line.strip().startswith(("ddp:", "fsdp2-bf16:", "pipeline:", "left_out:"))
    ]
    assert preset.with_name("params.yaml.saved").exists()


def test_keys_are_set_and_remarks_stay(preset):
    preset.write_text(f"# of ours\n{preset.read_text()}")
    before = preset.read_text().splitlines()
    told = change_params(preset, ["train.learning_rate=1e-3", "measure.speed=false", "train.packing=true"])
    params = load_params(preset)
    assert (params.train.learning_rate, params.measure.speed, params.train.packing) == (1e-3, False, True)
    assert told[1] == "measure.speed: not set -> False"
    assert len(set(before) - set(preset.read_text().splitlines())) <= 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("train.learning_rate", "allowed: KEY=VALUE"),
        ("=3", "allowed: KEY=VALUE"),
        ("train.learning_rate=fast", "train.learning_rate: got 'fast'"),
        ("train.learning_rate.more=1", "below a value that is no section"),
        ("name={a: [}", "allowed: YAML"),
    ],
)
def test_what_is_no_change_or_the_schema_refuses_is_one_line_and_changes_nothing(change, says, preset):
    before = preset.read_bytes()
    with pytest.raises(ConfigurationError, match=says) as caught:
        change_params(preset, [change])
    assert "\n" not in str(caught.value)
    assert (preset.read_bytes(), [file.name for file in preset.parent.iterdir()]) == (before, ["params.yaml"])
