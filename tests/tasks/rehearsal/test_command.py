"""`python -m tasks.rehearsal`: which cards it knows, what it prints, how it ends, and what is said to make a cell fit.

Where another figure of a step would do as well it is made up.
"""

import re
import sys
from collections import Counter

import pytest

from tasks.params import load_params
from tasks.process.failure import ConfigurationError, ResourceError
from tasks.rehearsal.__main__ import _main
from tasks.rehearsal.cards import GIB, parse_gpu
from tests.conftest import PROJECT
from tests.hub_server import HubServer
from tests.processes import run_python
from tests.tiny import make_tiny_model
from tests.warm.sources import link_sources
from training.probing.live_memory import Work
from training.rehearsal.rehearsed_step import RehearsedStep

_GATHERING = """
from pathlib import Path
from tasks.params import load_params
from tasks.rehearsal.inputs import gather_inputs

with gather_inputs(load_params(Path("params.yaml"), looks_at_data=False)) as inputs:
    print((inputs.model_dir / "config.json").read_text())
"""


def _write_params(folder, *changes, preset="qwen2-arxiv"):
    """Write the preset, for the model in the folder if there is one; what fits is then asked for, not chosen."""
    text = (PROJECT / "presets" / f"{preset}.yaml").read_text()
    if (folder / "model").is_dir():
        text = re.sub(r"source: hub:(Qwen|facebook)/.*\n  revision: main", "source: path:model", text)
    for old, new in (("micro_batch_size: auto", "micro_batch_size: 16"), *changes):
        text = text.replace(old, new)
    (folder / "params.yaml").write_text(text)


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
def test_every_cell_is_told_with_its_memory_and_a_range_that_is_called_modelled(tmp_path):
    make_tiny_model(link_sources(tmp_path) / "model")
    _write_params(
        tmp_path, ("price_per_gpu_hour: null", "price_per_gpu_hour: 2.5\n  price_date: '2026-11-01'"),
        ("\n  2gpu:", "\n  large: {strategy: zero1, world_size: 2}\n  2gpu:"),
    )  # fmt: skip
    done = run_python("-m", "tasks.rehearsal", "2x H100-80", folder=tmp_path, COLUMNS="200")
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
def test_of_a_model_of_the_hub_its_config_alone_is_fetched_and_its_commit_kept(tmp_path):
    whole = make_tiny_model(link_sources(tmp_path) / "whole")
    (whole / "tokenizer.json").write_text("{}")
    _write_params(tmp_path)
    with HubServer() as hub:
        hub.add_repo("model", "Qwen/Qwen2-0.5B-Instruct", whole)
        hub_here = hub.environment(cache=tmp_path / "cache", token="hf_none")
        done = run_python("-c", _GATHERING, folder=tmp_path, **hub_here)
        asked = hub.requests
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"qwen2"' in done.stdout
    assert any("config.json" in line for line in asked)
    assert not [line for line in asked if "safetensors" in line or "tokenizer" in line]
    assert "Qwen/Qwen2-0.5B-Instruct@main" in (tmp_path / ".work/download/revisions.json").read_text()


def _rehearse(config, **_):
    """Return a state of 12 GiB, which zero1 and fsdp2 share, and 1 GiB per row, a quarter where it is recomputed."""
    state = {"single": 12.0, "ddp": 12.0, "zero1": 9.0, "fsdp2": 6.0}[config.strategy]
    per_row = 0.25 if config.activation_checkpointing == "layers" else 1.0
    peak = Counter(weights=int((state + per_row * config.micro_batch_size) * GIB))
    return RehearsedStep(peak_bytes=peak, num_positions=1, work=Work(num_kernels=1), num_parameters=1)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return `run(*words, preset=...)`: the command in this process, by such steps and a model's config.json."""
    (make_tiny_model(tmp_path / "model") / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("tasks.rehearsal.cell.rehearse_largest_rank", _rehearse)

    def run(*words, **preset):
        _write_params(tmp_path, **preset)
        monkeypatch.setattr(sys, "argv", ["rehearse", *words])
        _main()

    return run


@pytest.mark.parametrize(
    ("card", "said"),
    [
        # Needed are 5 % more than 28 GiB and one for CUDA. 4 rows fit, or 16 that are recomputed.
        (
            "21GB",
            "1gpu does not fit: 12.21 GiB are missing. It fits with any of: train.micro_batch_size: 4; "
            "train.activation_checkpointing: layers.",
        ),
        # 6.25 GiB is the least that there is.
        (
            "11GB",
            "It fits with any of: train.micro_batch_size: 1 with train.activation_checkpointing: layers with strategy "
            "fsdp2: in this cell.",
        ),
    ],
)
def test_what_does_not_fit_says_what_would_alone_or_together_and_ends_with_4(card, said, run, capsys):
    with pytest.raises(ResourceError, match=f"^1gpu, 2gpu: would not fit on 1 x {card}") as caught:
        run(f"1x {card},300GB/s,100TFLOP/s")
    assert caught.value.exit_code == 4
    printed = capsys.readouterr().out
    assert said in printed
    assert "2gpu needs 1 card more." in printed
    assert "$" not in printed, "without a price there is none"


def test_a_precision_that_the_card_emulates_is_refused(run):
    with pytest.raises(ConfigurationError, match=r"train\.precision: got bf16, .*; allowed: fp16"):
        run("T4")


def test_what_does_not_fit_is_left_out_with_its_reason_and_the_first_that_fits_is_the_baseline(run, tmp_path, capsys):
    run("2x 15GB,300GB/s,100TFLOP/s", "--leave-out", preset="opt-1.3b-fsdp")
    params = load_params(tmp_path / "params.yaml", looks_at_data=False)
    assert (list(params.cells), list(params.left_out)) == (["2gpu"], ["1gpu"])
    reason = params.left_out["1gpu"]
    # 12 GiB, and 8 rows that are recomputed.
    assert reason.startswith("does not fit on 2 x 15GB,300GB/s,100TFLOP/s by rehearsal: 15.70 GiB are needed, 12.99 ")
    said = capsys.readouterr().out
    assert f"left out: 1gpu: {reason}" in said
    assert "2gpu fits." in said


def test_a_card_can_be_described_by_its_figures():
    number, card = parse_gpu("4x 48GB,864GB/s,181TFLOP/s")
    assert number == 4
    assert card.memory_gib == pytest.approx(0.93 * 48e9 / 2**30)
    assert (card.gb_per_second, card.tflops, card.link_gb_per_second) == (864, 181, None)
    assert card.find_tflops("bf16") == 181
    assert card.find_tflops("fp32") is None, "not guessed"
    assert parse_gpu("48GB, 864GB/s, 181TFLOP/s, link 32GB/s")[1].link_gb_per_second == 32


@pytest.mark.parametrize(
    "text", ["", "H100", "0x T4", "2x", "48GB", "0GB,864GB/s,181TFLOP/s", "1.2.3GB,1GB/s,1TFLOP/s"]
)
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(
        ConfigurationError, match=r"GPU: got .*; allowed: A100-40, A100-80, H100-80, H200, B200, A10G, L4"
    ):
        parse_gpu(text)
