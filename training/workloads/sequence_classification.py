"""Sequence classification: tell which class a text is of, with any sequence classifier of transformers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import SegmentConfig, TrainingConfig
from training.data import batches
from training.data.batches import IGNORED_LABEL, MicroBatch, Slice
from training.data.rows import Rows
from training.model import attention_masks
from training.model.attention_kernels import has_dropout as has_dropout
from training.model.compiled_layers import compile_layers
from training.model.lean_imports import lean_imports
from training.model.weights import has_numbers, load_weights
from training.process.failure import UnfitModelError

UNIT = "token"
HAS_LABELS = True
HAS_PROMPTS = False


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as tokens, and the class of each; memory-mapped."""

    texts: Slice
    """The tokens of each, the last of which closes it."""
    labels: np.ndarray
    """(num_rows,) int64: number of the class."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def row_ids(self) -> np.ndarray:
        """(num_rows,) int64: position of each row in the data set."""
        return self.texts.row_ids

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the tokens of every text after cutting to `seq_len`: (num_rows,) int64."""
        return self.texts.lengths(seq_len)

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return the same: the model reads every token."""
        return self.lengths(seq_len)

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return 1 for every text: it has one class."""
        return np.ones(len(self), dtype=np.int64)

    def row(self, index: int, seq_len: int) -> np.ndarray:
        """Return the tokens of a text: (length,) int32; of a longer one the first, and the one that closes it."""
        text = self.texts.row(index, seq_len)
        end = self.texts.offsets[index + 1] - 1
        return np.append(text[:-1], self.texts.tokens[end]) if len(text) == seq_len else text

    def collate(
        self,
        rows: Sequence[int],
        *,
        seq_len: int,
        is_packed: bool = False,
        dropout_seed: int = 0,
        place: int | None = None,
    ) -> MicroBatch:
        """Return the texts as one micro-batch, all as long as the longest rounded up to 8, at most `seq_len`."""
        assert not is_packed, "prepare refuses packing"
        texts = [self.row(index, seq_len) for index in rows]
        lengths = np.array([len(text) for text in texts], dtype=np.int64)
        padded_len = batches.compute_padded_length(lengths.tolist(), seq_len)
        input_ids = np.zeros((len(texts), padded_len), dtype=np.int64)
        for place_in_batch, text in enumerate(texts):
            input_ids[place_in_batch, : len(text)] = text
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy((np.arange(padded_len) < lengths[:, None]).astype(np.int64)),
            labels=torch.from_numpy(np.array(self.labels[list(rows)], dtype=np.int64)),
            label_places=torch.arange(len(texts)),
            row_ids=np.asarray(self.row_ids[list(rows)], dtype=np.int64),
            sample_num_tokens=lengths,
            sample_num_targets=np.ones(len(texts), dtype=np.int64),
            num_padding_tokens=input_ids.size - int(lengths.sum()),
            dropout_seed=dropout_seed,
            place=place,
        )

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing."""
        return make_dummy_micro_batch(seq_len)

    def list_token_ids(self, rows: Sequence[int], seq_len: int) -> np.ndarray:
        """Return the tokens of these texts, each once, and 0, with which they are padded: (n,) int64."""
        return np.unique(np.concatenate([[0], *(self.row(row, seq_len) for row in rows)])).astype(np.int64)


def open_slice(folder: Path) -> LabelledTexts:
    """Return the rows of a folder that has labels.npy beside the tokens; raises as batches.open_slice does."""
    texts = batches.open_slice(folder)
    (labels,) = batches.opened_arrays(folder, "labels")
    if len(labels) != len(texts):
        raise ValueError(f"{folder}: {len(labels)} labels and {len(texts)} rows; the slice stage makes them anew")
    return LabelledTexts(texts=texts, labels=labels)


def make_dummy_micro_batch(seq_len: int) -> MicroBatch:
    """Return a micro-batch that costs little and weighs nothing: no sample, its one label ignored."""
    dummy = batches.make_dummy_micro_batch(seq_len)
    return MicroBatch(
        **{
            **vars(dummy),
            "labels": torch.full((1,), IGNORED_LABEL),
            "attention_mask": torch.ones_like(dummy.input_ids),
        }
    )


def load_model(model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
    """Return the classifier of a transformers folder in fp32 on the CPU, or with the weights of a checkpoint file.

    Raises BadCheckpointError if the checkpoint is not loadable or is not one of this model.
    """
    # Here, not above: several seconds that the data and the plan can do without.
    with lean_imports():
        from transformers import AutoModelForSequenceClassification
        from transformers.utils import logging

        logging.disable_progress_bar()
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            model_dir, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    if checkpoint is not None:
        load_weights(model, checkpoint)
    whole: nn.Module = model
    return whole


def outline_model(model_dir: Path) -> nn.Module:
    """Return the classifier that a folder's config.json describes, as `load_model` gives it but for its numbers."""
    with lean_imports():
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        model: Any = AutoModelForSequenceClassification.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    whole: nn.Module = model
    return whole


def augment_rows(rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
    """Return the rows as they are."""
    return rows


def can_pack(model: nn.Module, config: TrainingConfig) -> bool:
    """Return False: its attention sees the whole row, which packing does not know how to keep apart."""
    return False


def find_tied_weight(model: nn.Module) -> nn.Parameter | None:
    """Return None: the head is no embedding."""
    return None


def prepare(model: nn.Module, config: TrainingConfig) -> None:
    """Have the model's layers compiled if the config says so.

    Raises UnfitModelError, in one line, for packed rows, rows longer than the model has positions for, and where there
    is no compiler.
    """
    if config.packing:
        raise UnfitModelError(
            "packing: true, but a text that is classified attends to all of itself and must not to its neighbours; use "
            "packing: false"
        )
    if has_numbers(model):
        _require_positions(model, config.seq_len)
    if config.compile:
        compile_layers(model, config.device)


def _require_positions(model: Any, seq_len: int) -> None:
    """Raise UnfitModelError unless the model takes a text of so many tokens: tried, since configs count differently."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is None:
        return
    # Padding has no position in some models, and some ask for an end of text.
    token = 0 if model.config.pad_token_id == 1 else 1
    end = getattr(model.config, "eos_token_id", None)
    ids = torch.full((1, seq_len), token, dtype=torch.int64, device=next(model.parameters()).device)
    if isinstance(end, int):
        ids[0, -1] = end
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            _compute_logits(model, ids, torch.ones_like(ids))
    except (IndexError, RuntimeError):
        raise UnfitModelError(
            f"seq_len: {seq_len}, but {type(model).__name__} has {most} positions; use fewer tokens"
        ) from None
    finally:
        model.train(was_training)


def loss_sum(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    scale: Tensor | None = None,
    chunk_rows: int = 1,
    head_weight: Tensor | None = None,
) -> Tensor:
    """Return the summed cross-entropy (nats) of the micro-batch's texts: () float32.

    Attention goes both ways, so that the mask is needed wherever something is padded.
    """
    logits = _compute_batch_logits(model, micro_batch)
    return F.cross_entropy(logits.float(), micro_batch.labels, ignore_index=IGNORED_LABEL, reduction="sum")


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the summed loss (nats) and how many texts were put into the right class: each () float64."""
    logits = _compute_batch_logits(model, micro_batch).float()
    loss = F.cross_entropy(logits, micro_batch.labels, ignore_index=IGNORED_LABEL, reduction="sum")
    return {"loss": loss.double(), "correct": (logits.argmax(1) == micro_batch.labels).sum().double()}


def _compute_batch_logits(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    assert micro_batch.attention_mask is not None
    with attention_masks.skip_mask_checks(is_padded=micro_batch.num_padding_tokens > 0):
        return _compute_logits(model, micro_batch.input_ids, micro_batch.attention_mask)


def _compute_logits(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return the logits: (num_samples, num_classes)."""
    # Some models find the last token of a text by what pads it.
    padding = getattr(model, "module", model).config.pad_token_id
    if padding:
        input_ids = input_ids.masked_fill(attention_mask == 0, padding)
    logits: Tensor = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return logits
