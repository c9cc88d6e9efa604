import itertools
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.growth.finished import seal_segment
from tasks.evaluate import HeldoutRows, ModelToEvaluate, evaluate
from tasks.evaluating.heldout_rows import make_batches
from tasks.records.manifests import SlicesManifest
from tests.finished_comparison import run_facts
from tests.museum.workloads import write_tokenizer
from tests.tiny import make_slice, make_tiny_model
from tests.tracked_run import PARAMS
from tests.warm.sources import link_sources
from training.process.files import write_json

VOCAB_SIZE = 128
"""Of every tiny model and slice."""
SEQ_LEN = PARAMS["train"]["seq_len"]
CELLS = ("1proc", "2proc")


def _write_run(folder, weights):
    """Write a finished cell, as far as the evaluation reads it."""
    segment = folder / "segments" / "80-160-epoch-1"
    segment.mkdir(parents=True)
    checkpoint = segment / "tiny_80-160-epoch-1.pt"
    torch.save(weights, checkpoint)
    seal_segment(segment)
    final = str(checkpoint.relative_to(folder))
    write_json(folder / "run.json", run_facts(folder.name, segments=[], final_checkpoint=final))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A project folder in which two cells of different weights wait for their evaluation."""
    folder = tmp_path_factory.mktemp("comparison")
    (folder / "params.yaml").write_text(json.dumps(PARAMS))
    data = folder / "data"
    make_tiny_model(data / "base_model", tied=False)
    write_tokenizer(data / "base_model")
    make_slice(data / "slices" / "160-190", num_rows=30, max_len=60, first_row=160)
    SlicesManifest(
        vocab_size=VOCAB_SIZE, eos_token_id=VOCAB_SIZE - 1, workload="causal_lm", slices={}, heldout="160-190"
    ).write(data / "slices")
    for seed, cell in enumerate(CELLS, start=1):
        other = make_tiny_model(folder / f"other-{seed}", seed=seed, tied=False)
        _write_run(data / "runs" / cell, _model(other).state_dict())
    return folder


def _model(folder):
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _rows(comparison):
    return HeldoutRows(
        folder=comparison / "data" / "slices" / "160-190",
        seq_len=SEQ_LEN,
        vocab_size=VOCAB_SIZE,
        eos_token_id=VOCAB_SIZE - 1,
        base_model=comparison / "data" / "base_model",
        workload="causal_lm",
    )


def _run_stage(folder, python=sys.executable):
    arguments = "--slices data/slices --base-model data/base_model --runs data/runs"
    return subprocess.run(
        [python, "-m", "tasks.evaluate", *arguments.split(), "--evaluation", "data/evaluation"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_loss_is_that_of_plain_torch_row_by_row_and_prompts_are_continued_greedily(comparison):
    rows = _rows(comparison)
    found = evaluate(ModelToEvaluate(name="base", checkpoint=None, weights_digest=""), rows).model_dump()
    tokens, offsets = (np.load(rows.folder / f"{name}.npy") for name in ("tokens", "offsets"))
    model = _model(rows.base_model)
    total, count = 0.0, 0
    for start, end in itertools.pairwise(offsets):
        row = torch.from_numpy(tokens[start:end][:SEQ_LEN].astype(np.int64))
        with torch.no_grad():
            total += float(cross_entropy(model(row[None]).logits[0, :-1], row[1:], reduction="sum"))
        count += len(row) - 1
    assert found["num_tokens"] == count
    assert found["loss"] == pytest.approx(total / count, rel=1e-6)
    assert found["perplexity"] == math.exp(found["loss"])
    assert len(found["samples"]) == 3
    ids = [int(word[1:]) for word in found["samples"][0]["prompt"].split()]
    written = []
    while len(written) < 40 and VOCAB_SIZE - 1 not in written:
        with torch.no_grad():
            written.append(int(model(torch.tensor([ids + written])).logits[0, -1].argmax()))
    assert found["samples"][0]["continuation"].split() == [f"w{index}" for index in written]
    checkpoint = next((comparison / "data/runs/1proc").rglob("*.pt"))
    other = evaluate(ModelToEvaluate(name="1proc", checkpoint=checkpoint, weights_digest=""), rows).model_dump()
    for key, is_same in (("row_id", True), ("prompt", True), ("continuation", False)):
        assert ([one[key] for one in other["samples"]] == [one[key] for one in found["samples"]]) == is_same


def test_a_tokenizer_of_two_files_and_a_model_of_few_positions_write_what_they_can(comparison, tmp_path):
    folder = shutil.copytree(comparison / "data/base_model", tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", {f"w{index}": index for index in range(VOCAB_SIZE)})
    (folder / "merges.txt").write_text("#version: 0.2\n")
    config = json.loads((folder / "config.json").read_bytes())
    write_json(folder / "config.json", config | {"max_position_embeddings": 30})
    rows = replace(_rows(comparison), base_model=folder)
    samples = evaluate(ModelToEvaluate(name="one", checkpoint=None, weights_digest=""), rows).samples
    assert [sample.prompt.count("w") for sample in samples] == [24] * 3
    assert {sample.continuation.count("w") for sample in samples} <= set(range(1, 7))


def test_every_row_is_in_exactly_one_batch_and_no_batch_is_larger_than_asked():
    lengths = np.random.default_rng(0).integers(1, 100, size=200)
    batches = make_batches(lengths, max_tokens=256)
    assert sorted(row for batch in batches for row in batch) == list(range(200))
    assert max(len(batch) * lengths[batch].max() for batch in batches) <= 256
    assert make_batches(np.array([500, 3]), max_tokens=256) == [[0], [1]]


@pytest.mark.slow
def test_a_second_run_evaluates_nothing_and_what_is_reused_belongs_to_the_weights(comparison, tmp_path, warm):
    folder = link_sources(shutil.copytree(comparison, tmp_path / "project"))
    file, run = folder / "data/evaluation/evaluation.json", folder / "data/runs/2proc"
    first = _run_stage(folder, warm / "python")
    assert first.returncode == 0, first.stderr
    written = file.read_bytes()
    evaluation = json.loads(written)
    assert list(evaluation["models"]) == ["base", *CELLS]
    assert len({model["loss"] for model in evaluation["models"].values()}) == 3
    assert {len(sample["continuations"]) for sample in evaluation["samples"]} == {3}
    assert evaluation["num_trained"] is None
    assert evaluation["models"]["2proc"]["checkpoint"] == "segments/80-160-epoch-1/tiny_80-160-epoch-1.pt"
    # Were a model loaded, the broken import would say so in a process that is started anew.
    shutil.rmtree(file.parent)
    (folder / "torch.py").write_text("raise ImportError('torch was imported')")
    second = _run_stage(folder)
    assert second.returncode == 0, second.stderr
    assert file.read_bytes() == written
    (folder / "torch.py").unlink()
    shutil.rmtree(run)
    _write_run(run, _model(folder / "other-1").state_dict())
    third = _run_stage(folder, warm / "python")
    assert third.stderr.count("evaluated before") == 3, third.stderr
    models = json.loads(file.read_bytes())["models"]
    assert models["2proc"]["loss"] == models["1proc"]["loss"]


@pytest.mark.parametrize(
    ("damage", "code"),
    [("cut", 3), ("not finite", 5), pytest.param("other shape", 3, marks=pytest.mark.slow)],
)
def test_a_checkpoint_that_is_of_no_use_ends_in_one_line_that_names_its_cell(comparison, tmp_path, damage, code, warm):
    folder = link_sources(shutil.copytree(comparison, tmp_path / "project"))
    run = folder / "data" / "runs" / "2proc"
    checkpoint = next(run.rglob("*.pt"))
    if damage == "cut":
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    else:
        shutil.rmtree(run)
        weights = {name: values * math.nan for name, values in _model(folder / "other-2").state_dict().items()}
        _write_run(run, weights if damage == "not finite" else {"lm_head.weight": torch.zeros(2, 2)})
    done = _run_stage(folder, warm / "python")
    assert done.returncode == code, done.stderr
    # A search reads there which of its trials is out.
    says = "evaluate: 2proc: " if damage == "not finite" else "2proc"
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert not (folder / "data" / "evaluation").exists()
