"""`python -m tasks.rehearsal`: what it prints, and its exit codes."""

import re

import pytest

from tasks.params import load_params
from tests.conftest import PROJECT
from tests.hub_server import HubServer
from tests.processes import run_python
from tests.tiny import make_tiny_model
from tests.warm.sources import link_sources


def _run(folder, gpu, *options, price="null", preset="qwen2-arxiv", more_cells="", **given):
    text = (PROJECT / "presets" / f"{preset}.yaml").read_text()
    if (folder / "model").is_dir():
        text = re.sub(
            r"source: hub:(Qwen/Qwen2-0.5B-Instruct|facebook/opt-1.3b)\n  revision: main", "source: path:model", text
        )
    # What fits is then asked for, not chosen.
    text = text.replace("micro_batch_size: auto", "micro_batch_size: 16")
    text = text.replace("price_per_gpu_hour: null", f"price_per_gpu_hour: {price}\n  price_date: '2026-11-01'")
    (folder / "params.yaml").write_text(text.replace("\n  2gpu:", f"{more_cells}\n  2gpu:"))
    return run_python("-m", "tasks.rehearsal", gpu, *options, folder=folder, **{"COLUMNS": "200", **given})


@pytest.fixture(autouse=True)
def sources(tmp_path, starts_warm):
    """A folder in which the command starts at once."""
    return link_sources(tmp_path)


@pytest.fixture
def folder(sources):
    make_tiny_model(sources / "model")
    return sources


@pytest.mark.slow
def test_every_cell_is_told_with_its_memory_and_a_range_that_is_called_modelled(folder):
    large = "\n  large: {strategy: zero1, world_size: 2}"
    done = _run(folder, "2x H100-80", price="2.5", more_cells=large)
    assert done.returncode == 0, done.stderr[-3000:]
    for words, number in (
        (" fits.", 3),
        ("activations", 3),
        ("modelled, not measured", 9),
        (" (h:min:s) for 393 steps", 3),
        (" per million tokens", 3),
    ):
        assert done.stdout.count(words) >= number, words
    disk = r"checkpoint of ([\d.]+) GiB, after 3 segments of each cell ([\d.]+) GiB in all"
    size, total = map(float, re.search(disk, done.stdout).groups())
    assert total == pytest.approx(10 * size, abs=0.06)
    speedup = [line for line in done.stdout.splitlines() if "times as fast as 1gpu" in line][-1]
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")][-3:]
    assert [(row[0].strip(), row[2].strip()) for row in rows] == [("1gpu", "yes"), ("large", "yes"), ("2gpu", "yes")]
    assert f"{rows[2][4].strip()} times as fast as 1gpu" in speedup


@pytest.mark.slow
def test_what_does_not_fit_says_what_would_and_ends_with_4(folder):
    done = _run(folder, "1x 1.2GB,300GB/s,100TFLOP/s")
    assert done.returncode == 4, done.stderr[-3000:]
    assert "1gpu does not fit: 0." in done.stdout
    assert "It fits with any of: train.micro_batch_size: " in done.stdout
    assert "2gpu needs 1 card more." in done.stdout
    assert done.stderr.count("\n") == 1
    assert "$" not in done.stdout, "without a price there is none"


def test_a_precision_that_the_card_emulates_is_refused_with_2(folder):
    done = _run(folder, "T4")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "train.precision: got bf16" in done.stderr
    assert "allowed: fp16" in done.stderr


@pytest.mark.slow
def test_of_a_model_of_the_hub_its_config_alone_is_fetched_and_its_commit_kept(tmp_path):
    whole = make_tiny_model(tmp_path / "whole")
    (whole / "tokenizer.json").write_text("{}")
    assert (whole / "model.safetensors").is_file()
    with HubServer() as hub:
        hub.add_repo("model", "Qwen/Qwen2-0.5B-Instruct", whole)
        done = _run(tmp_path, "1x H100-80", "--leave-out", **hub.environment(cache=tmp_path / "cache", token="hf_none"))
        asked = hub.requests
    assert done.returncode == 0, done.stderr[-3000:]
    assert "1gpu fits." in done.stdout
    assert any("config.json" in line for line in asked)
    assert not [line for line in asked if "safetensors" in line or "tokenizer" in line]
    assert "Qwen/Qwen2-0.5B-Instruct@main" in (tmp_path / ".work/download/revisions.json").read_text()


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_with_its_reason_and_the_first_that_fits_is_the_baseline(tmp_path):
    make_tiny_model(tmp_path / "model", vocab_size=8192, hidden_size=512, num_layers=4)
    # Between what one rank takes of weights and moments, and what each of two does that shard them.
    done = _run(tmp_path, "2x 1.62GB,300GB/s,100TFLOP/s", "--leave-out", preset="opt-1.3b-fsdp")
    assert done.returncode == 0, done.stderr[-3000:]
    params = load_params(tmp_path / "params.yaml", looks_at_data=False)
    assert (list(params.cells), list(params.left_out)) == (["2gpu"], ["1gpu"])
    reason = params.left_out["1gpu"]
    assert reason.startswith("does not fit on 2 x 1.62GB,300GB/s,100TFLOP/s by rehearsal: 1.")
    assert f"left out: 1gpu: {reason}" in done.stdout
    assert "2gpu fits." in done.stdout
