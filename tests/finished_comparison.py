"""A finished comparison on disk, made by hand: what the stage `upload` finds, with a tiny random Qwen2 model."""

import json
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from benchmarks.growth.finished import seal_segment
from tasks.reporting.collect import collect_results
from tasks.reporting.results import write_results
from tests.tasks.reporting.comparison import outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement
from tests.tiny import make_tiny_model
from training.model.weights import collect_weights
from training.process.files import write_json

PARAMS = """\
name: tiny
description: A tiny comparison, made by hand.
model:
  source: builtin:tiny-qwen2
  name: tiny_qwen2
dataset:
  source: builtin:docstrings
ranges: [0-8, 8-16]
heldout: 16-20
workload: causal_lm
train: {epochs: 1, global_batch_size: 4, micro_batch_size: 2, learning_rate: 1e-3, seq_len: 32}
cells:
  1proc: {strategy: single, world_size: 1}
  2proc: {strategy: ddp, world_size: 2}
upload: {repo_id: REPO_ID}
"""


def make_finished_comparison(folder, *, repo_id="null"):
    """Fill `folder` with params.yaml, data/base_model, data/runs/1proc and 2proc, and reports."""
    (folder / "params.yaml").write_text(PARAMS.replace("REPO_ID", repo_id), encoding="utf-8")
    model = _make_base_model(folder / "data/base_model")
    for seed, cell in enumerate(("1proc", "2proc")):
        _make_run(folder / "data/runs" / cell, cell, model, seed)
    reports = folder / "reports"
    (reports / "charts").mkdir(parents=True)
    (reports / "index.html").write_text("<!doctype html><title>report</title>", encoding="utf-8")
    (reports / "report.md").write_text("# report\n", encoding="utf-8")
    (reports / "charts/speedup.svg").write_text("<svg/>", encoding="utf-8")
    write_results(reports / "results.json", make_results())


def _make_base_model(folder):
    make_tiny_model(folder, vocab_size=64)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    return Qwen2ForCausalLM.from_pretrained(folder)


def _make_run(folder, cell, model, seed):
    segments = []
    for part in ("0-8", "8-16"):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
        segment = folder / "segments" / f"{part}-epoch-1"
        segment.mkdir(parents=True)
        for name in (f"tiny_qwen2_{part}-epoch-1.pt", "state.pt"):
            torch.save(collect_weights(model), segment / name)
        seal_segment(segment)
        segments.append({"range": part, "epoch": 1, "fingerprint": "0", "folder": f"segments/{part}-epoch-1"})
    final = "segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt"
    write_json(folder / "run.json", run_facts(cell, segments=segments, final_checkpoint=final))


_RUN = """{
  "strategy": "single", "world_size": 1, "launcher": "torchrun", "threads_per_rank": 1, "device": "cpu",
  "micro_batch_size": 2, "grad_accum_steps": 2, "global_batch_size": 4, "base_model_digest": "base",
  "numerics_version": 1, "machine_digest": "machine", "model_name": "tiny_qwen2", "train": {}, "workload": "causal_lm"
}"""


def run_facts(cell, **more):
    """Return run.json of a cell; `more` is entered into it."""
    return {"cell": cell} | json.loads(_RUN) | more


def make_results():
    """Return the results of such a comparison, which name no checksums."""
    with tempfile.TemporaryDirectory() as name:
        params = write_comparison(Path(name))
        write_measurement(Path(name))
        found = collect_results(outputs_of(Path(name), params))
    cells = [cell.model_copy(update={"final_parameter_checksum": None}) for cell in found.cells]
    return found.model_copy(update={"cells": cells})


def read_json(path):
    """Return what the JSON file holds."""
    return json.loads(path.read_bytes())
