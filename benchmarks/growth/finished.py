"""A finished comparison of any size, as the stages leave it for the report; its figures are made up."""

import json

import numpy as np

from tasks.params import Params
from tasks.params.train import NOT_FOR_RANKS
from tasks.records.outputs import read_outputs
from tasks.records.run import SealedFile
from training.process.files import digest_json, write_json
from training.record.ledger_file import LEDGER, LEDGER_DTYPE
from training.state.receipt import RECEIPT

_ROWS_PER_STEP = 16
_HELDOUT_ROWS = 20
_TOKENS = 9
_NUM_PARAMETERS = 1_000
_STEP_SECONDS = {1: 0.5, 2: 0.3}
_DIGESTS = {"base_model_digest": "ba5e" * 16, "machine_digest": "ac3e" * 16, "numerics_version": 1}


def write_finished(folder, *, num_rows, epochs):
    """Write what the report reads, of cells with 1 and 2 processes over one range; nothing else that a run leaves."""
    rows, heldout = f"0-{num_rows}", f"{num_rows}-{num_rows + _HELDOUT_ROWS}"
    params = {
        "name": "made-up", "description": "A comparison of a given size.", "workload": "causal_lm",
        "model": {"source": "builtin:tiny-qwen2", "name": "tiny"},
        "dataset": {"source": "hub:made/up", "revision": "main"},
        "ranges": [rows], "heldout": heldout,
        "train": {"epochs": epochs, "global_batch_size": _ROWS_PER_STEP, "micro_batch_size": 4, "learning_rate": 1e-3}
        | {"schedule": "constant", "seq_len": 64},
        "cells": {f"{size}proc": {"strategy": "single" if size == 1 else "ddp", "world_size": size} for size in (1, 2)},
    }  # fmt: skip
    write_json(folder / "params.json", params)
    _write_sources(folder, num_rows + _HELDOUT_ROWS)
    for name in (rows, heldout):
        _write_slice(folder / "slices" / name, name)
    train = Params.model_validate(params).train.model_dump()
    for size in (1, 2):
        _write_run(folder / "runs" / f"{size}proc", size, num_rows, train)
    figures = {"loss": 3.0, "num_tokens": _HELDOUT_ROWS * (_TOKENS - 1), "checkpoint": None}
    figures["parameter_checksum"] = _checksum(epochs)
    write_json(
        folder / "evaluation" / "evaluation.json",
        {"heldout": heldout, "num_rows": _HELDOUT_ROWS, "seq_len": 64, "samples": []}
        | {"models": dict.fromkeys(["base", "1proc", "2proc"], figures)},
    )


def write_ledger(segment, *, rank, step, row_id, num_tokens):
    """Write the ledger of a finished segment, and seal what is there."""
    np.stack([rank, step, row_id, num_tokens], axis=1).astype(LEDGER_DTYPE).tofile(segment / LEDGER)
    seal_segment(segment)


def seal_segment(segment):
    """Write as much of a segment's receipt as says what its files are."""
    files = [file for file in sorted(segment.iterdir()) if file.name != RECEIPT]
    content = {"files": {file.name: SealedFile.describe(file).model_dump() for file in files}}
    write_json(segment / RECEIPT, content | {"digest": digest_json(content)})


def outputs_of(folder):
    """Return what was written as the report reads it."""
    return read_outputs(
        Params.model_validate(json.loads((folder / "params.json").read_bytes())),
        raw=folder / "raw.json", base_model=folder / "base_model.json", slices=folder / "slices",
        measurements=folder / "measurements", runs=folder / "runs", evaluation=folder / "evaluation",
        machine=folder / "machine.json",
    )  # fmt: skip


def _write_sources(folder, num_rows):
    source = {"kind": "builtin", "revision": None, "commit": None, "split": "train"}
    raw = {
        "source": "hub:made/up",
        "split": "train",
        "text_column": "text",
        "num_rows": num_rows,
        "digest": "da7a" * 16,
    }
    write_json(folder / "raw.json", source | raw | {"label": "made up"})
    base = {"source": "builtin:tiny-qwen2", "digest": _DIGESTS["base_model_digest"], "label": "made up"}
    shape = {"num_parameters": _NUM_PARAMETERS, "model_type": "qwen2", "is_random_weights": True}
    write_json(folder / "base_model.json", source | base | shape)
    machine = {"digest": _DIGESTS["machine_digest"], "gpus": [], "cpu": "A CPU", "num_cpus": 2, "os": "Linux"}
    machine |= {"num_gpus": 0, "architecture": "x86_64"}
    write_json(folder / "machine.json", machine | {"driver": None, "versions": {"python": "3.11"}})


def _write_slice(folder, name):
    start, end = map(int, name.split("-"))
    folder.mkdir(parents=True)
    np.save(folder / "row_ids.npy", np.arange(start, end))
    np.save(folder / "offsets.npy", np.arange(end - start + 1) * _TOKENS)
    facts = {"range": name, "num_rows": end - start, "num_tokens": (end - start) * _TOKENS, "digest": name}
    write_json(folder / "manifest.json", facts)


def _write_run(folder, world_size, num_rows, train):
    epochs = train["epochs"]
    setting = {
        "train": {name: value for name, value in train.items() if name not in NOT_FOR_RANKS},
        "workload": "causal_lm", "model_name": "tiny", "options": {}, "device": "cpu", "versions": {}, "kernels": {},
        "environment": {}, "ranks_differ": {},
    }  # fmt: skip
    num_steps = -(-num_rows // _ROWS_PER_STEP)
    entries = []
    for epoch in range(1, epochs + 1):
        place = f"segments/0-{num_rows}-epoch-{epoch}"
        path, first_step = folder / place, (epoch - 1) * num_steps + 1
        facts = _segment(world_size, num_rows, epoch, num_steps, first_step)
        write_json(path / "segment.json", facts | {"settings": [setting]})
        lines = (_line(world_size, num_rows, epoch, num_steps, first_step, number) for number in range(num_steps))
        with (path / "steps.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        place_of = np.arange(num_rows, dtype=LEDGER_DTYPE)
        order = np.random.default_rng([0, epoch, 0, num_rows]).permutation(num_rows)
        write_ledger(
            path, rank=place_of % world_size, step=first_step + place_of // _ROWS_PER_STEP,
            row_id=order, num_tokens=np.full_like(place_of, _TOKENS - 1),
        )  # fmt: skip
        entries.append({"range": f"0-{num_rows}", "epoch": epoch, "fingerprint": _checksum(epoch), "folder": place})
    write_json(
        folder / "run.json",
        {"cell": f"{world_size}proc", "strategy": "single" if world_size == 1 else "ddp", "world_size": world_size}
        | {"launcher": "torchrun", "threads_per_rank": 1, "device": "cpu", "backend": "gloo", "micro_batch_size": 4}
        | {
            "grad_accum_steps": 4 // world_size,
            "global_batch_size": _ROWS_PER_STEP,
            "final_checkpoint": "none",
            "model_name": "tiny",
        }
        | {"segments": entries, "train": train, "workload": "causal_lm", "model_name": "tiny"}
        | _DIGESTS,
    )


def _segment(world_size, num_rows, epoch, num_steps, first_step):
    seconds = _STEP_SECONDS[world_size] * num_steps
    is_spread, num_bytes = world_size > 1, 4 * _NUM_PARAMETERS
    losses = [_loss(first_step + number) for number in range(num_steps)]
    return {
        "cell": f"{world_size}proc", "range": f"0-{num_rows}", "epoch": epoch, "num_steps": num_steps,
        "fingerprint": _checksum(epoch), "first_step": first_step, "last_step": first_step + num_steps - 1,
        "num_samples": num_rows, "num_tokens": num_rows * (_TOKENS - 1), "num_targets": num_rows * (_TOKENS - 1),
        "tokens_per_second": num_rows * (_TOKENS - 1) / seconds, "samples_per_second": num_rows / seconds,
        "backend": "gloo" if is_spread else None, "train_seconds": seconds,
        "data_wait_seconds": 0.0, "other_seconds": 0.0, "checkpoint_seconds": 0.5, "log_seconds": 0.0,
        "span_seconds": seconds + 0.5, "loss": sum(losses) / num_steps, "peak_memory_gib": None,
        "traffic": {"all_reduce": {"number": num_steps, "num_bytes": num_bytes * num_steps}} if is_spread else {},
        "exchange": {"bucket_bytes": [num_bytes]} if is_spread else {},
        "start_checksum": _checksum(epoch - 1), "parameter_checksums": [_checksum(epoch)] * world_size,
        "start_optimizer_checksum": _checksum(epoch - 1), "optimizer_checksums": [_checksum(epoch)] * world_size,
        "num_resumes": 0, "checkpoints_not_used": [], "micro_batch_sizes": [4], "version_drift": [],
        "started_at": "2026-01-01T00:00:00+00:00",
        "checked_updates": [{"step": first_step, "verdict": "passed"}],
    }  # fmt: skip


def _line(world_size, num_rows, epoch, num_steps, first_step, number):
    num_samples = min(_ROWS_PER_STEP, num_rows - number * _ROWS_PER_STEP)
    return {
        "event": "step", "step": first_step + number, "range": f"0-{num_rows}", "epoch": epoch,
        "segment_step": number + 1, "segment_steps": num_steps, "loss": _loss(first_step + number),
        "num_tokens": num_samples * (_TOKENS - 1), "num_samples": num_samples, "num_padding_tokens": 0,
        "learning_rate": 1e-3, "grad_norm": 1.0, "seconds": _STEP_SECONDS[world_size], "data_wait_seconds": 0.0,
        "other_seconds": 0.0, "rank_own_seconds": [0.9 * _STEP_SECONDS[world_size]] * world_size,
        "rank_own_positions": [num_samples * _TOKENS] * world_size,
    }  # fmt: skip


def _loss(step):
    return 2.0 + 2.0 / (1 + step / 100)


def _checksum(epoch):
    return f"{epoch:016x}"
