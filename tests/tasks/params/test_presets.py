"""`make use PRESET=name`."""

import shutil
from pathlib import Path

import pytest

from tasks.params.editing import use_preset
from tasks.process.failure import ConfigurationError


@pytest.fixture(autouse=True)
def _workspace(folder, project):
    shutil.copytree(project / "presets", "presets")
    shutil.copy(project / "params.yaml", "params.yaml")


def test_a_preset_whose_data_is_not_there_yet_says_so():
    said = use_preset("resnet18-imagefolder")
    assert Path("params.yaml").read_bytes() == Path("presets/resnet18-imagefolder.yaml").read_bytes()
    assert "imagenette2-320" in said


def test_what_params_yaml_is_a_link_to_stays_as_it_was():
    (own := Path("presets/own.yaml")).write_bytes(before := Path("params.yaml").read_bytes() + b"# of ours\n")
    for name in ("embedded", "own"):
        Path("params.yaml").unlink()
        Path("params.yaml").symlink_to(own)
        use_preset(name)
        assert (own.read_bytes(), Path("params.yaml").is_symlink()) == (before, False)


def test_every_comparison_of_ones_own_is_kept():
    default = Path("params.yaml").read_text()
    own = [default.replace("epochs: 2", f"epochs: {number}") for number in (3, 4, 3)]
    for text in own:
        Path("params.yaml").write_text(text)
        assert "saved" in use_preset("embedded")
    assert [Path(f"params.yaml.saved{more}").read_text() for more in ("", "-2")] == own[:2]
    assert not Path("params.yaml.saved-3").exists()


@pytest.mark.parametrize("name", ["nope", "../params"])
def test_an_unknown_preset_is_refused_with_the_known_ones(name):
    before = Path("params.yaml").read_bytes()
    with pytest.raises(ConfigurationError, match=r"embedded, .*qwen2-arxiv"):
        use_preset(name)
    assert Path("params.yaml").read_bytes() == before
