"""A finished comparison on disk, made by hand: what the stage `upload` finds, with a tiny random Qwen2 model."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tasks.records.gate import CellFinding, Gate
from tasks.records.run import SealedFile
from tasks.reporting.results import Results, write_results
from training.model.weights import collect_weights, without_deepspeed
from training.process.files import digest_json, write_json

SPEEDUP = 1.2345
"""The 2-process cell's speedup, where it is not withheld."""

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


def make_finished_comparison(folder: Path, *, repo_id: str = "null", is_withheld: bool = False) -> None:
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
    write_results(reports / "results.json", make_results(is_withheld=is_withheld))


def _make_base_model(folder: Path) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    with without_deepspeed():
        model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(folder)
    write_json(folder / "manifest.json", {"label": "random weights"})
    return model


def _make_run(folder: Path, cell: str, model: Qwen2ForCausalLM, seed: int) -> None:
    segments = []
    for part in ("0-8", "8-16"):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.01)
        segment = folder / "segments" / f"{part}-epoch-1"
        segment.mkdir(parents=True)
        names = (f"tiny_qwen2_{part}-epoch-1.pt", "state.pt")
        for name in names:
            torch.save(collect_weights(model), segment / name)
        write_receipt(segment, names)
        segments.append({"range": part, "epoch": 1, "fingerprint": "0", "folder": f"segments/{part}-epoch-1"})
    final = "segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt"
    write_json(folder / "run.json", run_facts(cell, segments=segments, final_checkpoint=final))


def write_receipt(segment: Path, names: Iterable[str]) -> None:
    """Seal these files of a segment, as the ranks do when it has ended."""
    files = {name: SealedFile.describe(segment / name).model_dump() for name in names}
    receipt = {"fingerprint": "0", "files": files}
    write_json(segment / "receipt.json", {**receipt, "digest": digest_json(receipt)})


def run_facts(cell: str, **more: Any) -> dict[str, Any]:
    """Return run.json of a cell; `more` is entered into it."""
    spread = {"strategy": "single", "world_size": 1, "launcher": "torchrun", "threads_per_rank": 1, "device": "cpu"}
    batch = {"micro_batch_size": 2, "grad_accum_steps": 2, "global_batch_size": 4}
    digests = {"base_model_digest": "base", "numerics_version": 1, "machine_digest": "machine"}
    other = {"model_name": "tiny_qwen2", "train": {}, "workload": "causal_lm"}
    return {"cell": cell} | spread | batch | digests | other | more


def make_results(*, is_withheld: bool = False) -> Results:
    """Return the results of the comparison; with a failed gate if its speedup is withheld."""
    verdict = "The speedup is withheld: unequal tokens." if is_withheld else f"2 processes are {SPEEDUP:.2f}x faster."
    gate = Gate(
        name="equal tokens",
        question="Did the cells learn from the same tokens?",
        findings=[
            CellFinding(
                cell=cell,
                verdict="failed" if is_withheld and cell == "2proc" else "passed",
                compared="1proc 512 | 2proc 480" if is_withheld else "512 tokens in each",
            )
            for cell in ("1proc", "2proc")
        ],
    )
    source = {"revision": None, "commit": None, "digest": "0" * 64}
    model = {"name": "tiny_qwen2", "model_type": "qwen2", "num_parameters": 99_999, "is_random_weights": True}
    dataset = {"split": None, "text_column": "text", "num_rows": 20}
    machine = {"digest": "0", "gpus": [], "driver": None, "cpu": "a CPU", "num_cpus": 2, "os": "Linux"}
    return Results.model_validate(
        {
            "created_at": "2026-01-01T00:00:00+00:00",
            "name": "tiny",
            "description": "A tiny comparison, made by hand.",
            "verdict": verdict,
            "label": "A demonstration on two CPU processes.",
            "gates": [gate.model_dump()],
            "comparison": {
                "model": {**source, **model, "source": "builtin:tiny-qwen2", "label": "random weights"},
                "dataset": {**source, **dataset, "source": "builtin:docstrings", "label": "docstrings"},
                "ranges": [_slice("0-8"), _slice("8-16")],
                "heldout": _slice("16-20"),
                "workload": "causal_lm",
                "train": {"epochs": 1, "global_batch_size": 4, "seq_len": 32, "learning_rate": 0.001}
                | {"schedule": "linear", "precision": "fp32", "seed": 0},
                "machine": {**machine, "versions": {"python": "3.11", "cuda": None}},
                "trained_at": "2026-01-01T00:00:00+00:00",
            },
            "cells": [
                _cell("1proc", 1, None if is_withheld else 1.0),
                _cell("2proc", 2, None if is_withheld else SPEEDUP),
            ],
            "quality": {
                "heldout": "16-20",
                "num_rows": 4,
                "seq_len": 32,
                "models": [_quality("base", 4.25), _quality("1proc", 3.5), _quality("2proc", 3.25)],
                "samples": [],
            },
            "loss_curves": [],
        }
    )


def _slice(rows: str) -> dict[str, Any]:
    start, end = map(int, rows.split("-"))
    return {"range": rows, "num_rows": end - start, "num_tokens": 32 * (end - start), "digest": "0" * 64}


def _quality(model: str, loss: float) -> dict[str, Any]:
    return {"model": model, "loss": loss, "perplexity": 10 * loss, "num_tokens": 128, "checkpoint": None}


def _cell(name: str, world_size: int, speedup: float | None) -> dict[str, Any]:
    counted = {"num_steps": 4, "num_samples": 16, "num_tokens": 496, "train_seconds": 2.0, "data_wait_share": 0.0}
    efficiency = None if speedup is None else speedup / world_size
    rates = {"tokens_per_second": 248.0, "samples_per_second": 8.0, "loss": 3.0}
    whole = {**counted, **rates, "speedup": speedup, "parallel_efficiency": efficiency}
    return {
        "cell": name,
        "is_baseline": world_size == 1,
        "standing": {"state": "withheld" if world_size > 1 and speedup is None else "proven"},
        "strategy": "single" if world_size == 1 else "ddp",
        "world_size": world_size,
        "launcher": "torchrun",
        "device": "cpu",
        "backend": None,
        "threads_per_rank": 1,
        "micro_batch_size": 2,
        "grad_accum_steps": 2 // world_size,
        "global_batch_size": 4,
        "num_epochs": 1,
        "seconds_per_epoch": 2.0,
        "checkpoint_seconds": 0.1,
        "peak_memory_gib": None,
        "num_resumes": 0,
        "checkpoints_not_used": [],
        "exchanged_mib_per_step": 0.0,
        "karp_flatt": None,
        "final_checkpoint": "segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt",
        "whole": whole,
        "epochs": [whole],
        "ranges": [whole],
        "segments": [whole],
    }


def read_json(path: Path) -> dict[str, Any]:
    """Return what the JSON file holds."""
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value
