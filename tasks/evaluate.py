"""Stage `evaluate`: the base model and every cell's last checkpoint on the held-out rows.

Every model is evaluated in fp32, whatever precision it was trained in, so that only the weights differ. The base model
is also evaluated on the rows of the first optimizer step, for the loss that step has to log. What was found of a model
stays in .work/evaluation/ under the digest of everything that it depends on: another cell or range evaluates only what
is new, and the base model once.
"""

import argparse
import importlib
import importlib.metadata
import json
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.params import Params, load_params
from tasks.reference.first_step import first_step
from tasks.reporting.statistics import perplexity
from tasks.stage.failure import DataError, DivergedError, exit_with_one_line
from tasks.stage.kept import kept_manifest
from tasks.stage.logs import configure_logging
from tasks.stage.progress import counting
from training.files import digest_of_file, digest_of_json, write_json

if TYPE_CHECKING:  # torch takes seconds to import, which a stage that finds all its models evaluated does not need
    from torch import nn

    from training.data import Slice

_log = logging.getLogger(__name__)

_STORE = Path(".work/evaluation")
_REFERENCE = Path(__file__).with_name("reference")
_NUM_SAMPLES = 3
_PROMPT_TOKENS = 24
_CONTINUATION_TOKENS = 40
_MAX_TOKENS_PER_BATCH = 16_384
_LOGITS_BYTES = {"cpu": 2**30, "cuda": 6 * 2**30}
"""Memory for the logits of a batch: with a vocabulary of 152,000 they, not the model, fill it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One model to be evaluated."""

    name: str
    """`base`, or the name of the cell that trained it."""
    checkpoint: Path | None
    """The cell's last checkpoint; None for the base model."""
    weights_digest: str
    """sha256 of the weights."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The held-out rows, and how they are read."""

    folder: Path
    seq_len: int
    """Tokens of a row at most; longer rows are cut."""
    vocab_size: int
    eos_token_id: int
    base_model: Path
    """The folder whose tokenizer made the tokens."""
    workload: str


def subjects_of(params: Params, *, base_model: Path, runs: Path) -> list[Subject]:
    """Return the base model and every cell's last checkpoint.

    Raises DataError (exit code 3) if one is missing or is not, byte for byte, what its manifest or receipt says.
    """
    manifest = kept_manifest(base_model)
    if manifest is None:
        raise DataError(f"{base_model}: a file is missing or not what manifest.json says; {_remedy(base_model)}")
    subjects = [Subject(name="base", checkpoint=None, weights_digest=manifest["digest"])]
    for cell in params.cells:
        file = runs / cell / _read(runs / cell / "run.json").get("final_checkpoint", "")
        promised = _read(file.parent / "receipt.json").get("files", {}).get(file.name, {}).get("sha256")
        if not file.is_file() or (digest := digest_of_file(file)) != promised:
            raise DataError(f"{file}: the checkpoint is missing or not what its receipt says; {_remedy(runs / cell)}")
        subjects.append(Subject(name=cell, checkpoint=file, weights_digest=digest))
    return subjects


def evaluate(subject: Subject, rows: Rows) -> dict[str, Any]:
    """Return the model's loss (nats per token, every label token counted once), perplexity and samples."""
    import torch

    from training.data import open_slice

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    workload = importlib.import_module(f"training.workloads.{rows.workload}")
    started = time.perf_counter()
    try:
        model = workload.load_model(rows.base_model, checkpoint=subject.checkpoint).to(device).eval()
        source = open_slice(rows.folder)
    except (OSError, ValueError) as error:
        raise DataError(f"{subject.name}: {error}") from None
    with torch.inference_mode():
        loss_sum, num_tokens = _sum_loss(workload, model, source, rows, what=f"evaluating {subject.name}")
        samples = _continue_rows(model, source, rows) if hasattr(model, "generate") else []
    loss = loss_sum / num_tokens
    if not math.isfinite(loss):
        raise DivergedError(f"{subject.name}: loss on the held-out rows is {loss}; train with a lower learning rate")
    seconds = time.perf_counter() - started
    _log.info("%s: loss %.4f on %d tokens, in fp32 on %s, %.1f s", subject.name, loss, num_tokens, device, seconds)
    return {"loss": loss, "perplexity": perplexity(loss), "num_tokens": num_tokens, "samples": samples}


def batches_of(lengths: np.ndarray, *, max_tokens: int) -> list[list[int]]:
    """Return all rows, longest first, in batches of at most `max_tokens` with padding; a longer row stands alone."""
    batches: list[list[int]] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        # The first row of a batch is its longest: all others are padded to it.
        if batches and (len(batches[-1]) + 1) * int(lengths[batches[-1][0]]) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def rows_to_continue(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Return (row, tokens of its prompt) of the first rows that are long enough to show a continuation of."""
    wanted = _PROMPT_TOKENS + _CONTINUATION_TOKENS // 2
    order = sorted(np.flatnonzero(lengths >= 2).tolist(), key=lambda row: (bool(lengths[row] < wanted), row))
    return [(row, min(_PROMPT_TOKENS, int(lengths[row]) // 2)) for row in order[:_NUM_SAMPLES]]


def _sum_loss(workload: Any, model: "nn.Module", source: "Slice", rows: Rows, *, what: str) -> tuple[float, int]:
    """Return the sum of the loss over all label tokens and their number, each counted once."""
    from training.data import collate

    device = next(model.parameters()).device
    lengths = source.lengths(rows.seq_len)
    # Logits in fp32, their log-softmax and one copy.
    max_tokens = min(_MAX_TOKENS_PER_BATCH, _LOGITS_BYTES[device.type] // (3 * 4 * rows.vocab_size))
    loss_sum, num_tokens = 0.0, 0
    with counting(what, len(source)) as advance:
        for batch in batches_of(lengths, max_tokens=max_tokens):
            micro_batch = collate(source, batch, seq_len=rows.seq_len).to(device)
            loss_sum += float(workload.loss_sum(model, micro_batch))
            num_tokens += micro_batch.num_tokens
            advance(len(batch))
    expected = int(np.maximum(lengths - 1, 0).sum())
    assert num_tokens == expected, f"{num_tokens} label tokens counted, the rows have {expected}"
    if not num_tokens:
        raise DataError(f"{rows.folder}: no row has a second token to predict; choose other rows as heldout")
    return loss_sum, num_tokens


def _continue_rows(model: Any, source: "Slice", rows: Rows) -> list[dict[str, Any]]:
    """Return the model's greedy continuations of the first tokens of a few rows, beside how the rows really go on."""
    import torch
    from tokenizers import Tokenizer
    from transformers import GenerationConfig

    tokenizer = Tokenizer.from_file(str(rows.base_model / "tokenizer.json"))
    # The model's own settings might sample or punish repetition, which would hide what the weights say.
    model.generation_config = GenerationConfig(
        max_new_tokens=_CONTINUATION_TOKENS,
        do_sample=False,
        use_cache=True,
        eos_token_id=rows.eos_token_id,
        pad_token_id=rows.eos_token_id,
    )
    samples = []
    for row, num_prompt in rows_to_continue(np.diff(source.offsets)):
        tokens = source.row(row, num_prompt + _CONTINUATION_TOKENS).tolist()
        prompt = torch.tensor([tokens[:num_prompt]], device=model.device)
        written = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))[0, num_prompt:].tolist()
        samples.append(
            {
                "row_id": int(source.row_ids[row]),
                "prompt": tokenizer.decode(tokens[:num_prompt]),
                "reference": tokenizer.decode(tokens[num_prompt:]),
                "continuation": tokenizer.decode(written),
            }
        )
    return samples


def _evaluate_or_reuse(subject: Subject, rows: Rows, *, code: str) -> dict[str, Any]:
    depends_on = {
        "base_model": _read(rows.base_model / "manifest.json")["digest"],
        "weights": subject.weights_digest,
        "rows": _read(rows.folder / "manifest.json")["digest"],
        "seq_len": rows.seq_len,
        "workload": rows.workload,
        "code": [code, digest_of_file(Path(__file__))],
    }
    return _kept_or_new(f"{subject.name}: evaluated", depends_on, lambda: evaluate(subject, rows))


def _first_step_or_reuse(params: Params, *, slices: Path, base_model: Path, code: str) -> dict[str, Any]:
    """Return the base model's loss on the rows of step 1; see tasks/reference/first_step.py."""
    train, part = params.train, str(params.ranges[0])
    depends_on = {
        "base_model": _read(base_model / "manifest.json")["digest"],
        "rows": _read(slices / part / "manifest.json")["digest"],
        "range": part,
        "order": [train.seed, train.global_batch_size, train.micro_batch_size, train.seq_len],
        "workload": params.workload,
        "code": [code, *(digest_of_file(file) for file in sorted(_REFERENCE.glob("*.py")))],
    }

    def compute() -> dict[str, Any]:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return first_step(params, slices=slices, base_model=base_model, device=device)

    return _kept_or_new("base: loss of step 1 computed", depends_on, compute)


def _kept_or_new(what: str, depends_on: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    versions = [importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")]
    kept = _STORE / f"{digest_of_json({**depends_on, 'versions': versions})}.json"
    if kept.is_file():
        _log.info("%s before, on these rows and with this code", what)
        return _read(kept)
    found = make()
    write_json(kept, found)
    return found


def _summary(params: Params, rows: Rows, subjects: list[Subject], *, runs: Path, code: str) -> dict[str, Any]:
    """Return evaluation.json: every model's figures, and their samples side by side."""
    found = {subject.name: _evaluate_or_reuse(subject, rows, code=code) for subject in subjects}
    models: dict[str, dict[str, Any]] = {}
    for subject in subjects:
        models[subject.name] = {key: found[subject.name][key] for key in ("loss", "perplexity", "num_tokens")}
        if subject.checkpoint is not None:
            models[subject.name]["checkpoint"] = str(subject.checkpoint.relative_to(runs / subject.name))
    samples = [
        {
            **{key: sample[key] for key in ("row_id", "prompt", "reference")},
            "continuations": {name: result["samples"][index]["continuation"] for name, result in found.items()},
        }
        for index, sample in enumerate(found["base"]["samples"])
    ]
    return {
        "heldout": str(params.heldout),
        "num_rows": _read(rows.folder / "manifest.json")["num_rows"],
        "num_tokens": found["base"]["num_tokens"],
        "seq_len": rows.seq_len,
        "precision": "fp32",
        "models": models,
        "samples": samples,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.evaluate", description=__doc__)
    for name in ("slices", "base-model", "runs", "code", "evaluation"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    configure_logging()
    params = load_params()
    manifest = _read(arguments.slices / "manifest.json")
    rows = Rows(
        folder=arguments.slices / str(params.heldout),
        seq_len=params.train.seq_len,
        vocab_size=manifest["vocab_size"],
        eos_token_id=manifest["eos_token_id"],
        base_model=arguments.base_model,
        workload=params.workload,
    )
    subjects = subjects_of(params, base_model=arguments.base_model, runs=arguments.runs)
    code = _read(arguments.code)["digest"]
    summary = _summary(params, rows, subjects, runs=arguments.runs, code=code)
    first = _first_step_or_reuse(params, slices=arguments.slices, base_model=arguments.base_model, code=code)
    write_json(arguments.evaluation / "evaluation.json", {**summary, "first_step": first})


def _read(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; {_remedy(path)}") from None
    return value


def _remedy(path: Path) -> str:
    return f"delete {path} and run `dvc repro`, which makes it anew"


if __name__ == "__main__":
    exit_with_one_line(_main, name="evaluate")
