"""What is trained by all peers: language models of two sizes, a classifier of texts, a network of images."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.throughput.rows import (
    lengths_of,
    small_qwen2,
    token_rows,
    write_images,
    write_labelled_texts,
    write_random_model,
    write_rows,
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and how much of it is run at once."""

    name: str
    """Of the model, in tables."""
    workload: str = "causal_lm"
    """Name of a file in training/workloads/."""
    world_sizes: tuple[int, ...] = (1,)
    """Numbers of processes."""
    seq_len: int = 512
    """Tokens per row at most; of images pixels of a side."""
    num_rows: int = 3_000
    """Rows at most."""
    vocab_size: int = 0
    """Rows of a language model's embedding."""
    global_batch_size: int
    """Samples per optimizer step."""
    steps_per_block: int
    """Timed steps of a block. Of several the peers group the lengths over all of them, and we within each."""
    shape: dict[str, int] = dataclasses.field(default_factory=dict)
    """Other fields of a language model's config than rows.small_qwen2 has."""

    def write(self, folder: Path, *, data: Path | None) -> str:
        """Write model/ and rows/ into the folder; return what they are, in words."""
        if self.workload == "image_classification":
            what = write_images(data, folder, self.num_rows, size=self.seq_len)
            return f"ResNet18 with group normalisation on {what}, {self.global_batch_size} per step"
        if self.workload == "sequence_classification":
            what = write_labelled_texts(data, folder, self.num_rows)
            lengths = np.diff(np.load(folder / "rows" / "offsets.npy"))
        else:
            texts = token_rows(data, self.num_rows)
            write_rows(folder / "rows", texts.rows, vocab_size=self.vocab_size)
            write_random_model(folder / "model", small_qwen2(self.vocab_size, **self.shape))
            what, lengths = f"Qwen2 architecture with {self.vocab_size:,} ids on {texts.label}", map(len, texts.rows)
        facts = lengths_of(lengths, self.seq_len)
        return (
            f"{what}, {self.global_batch_size} rows per step, {facts['mean_tokens']:.0f} tokens on average, padding "
            f"all to {self.seq_len} would be {facts['padding_share']:.0%} padding"
        )


SIZES = (
    Size(name="small vocabulary", world_sizes=(1, 2), vocab_size=2_048, global_batch_size=16, steps_per_block=1),
    Size(name="large vocabulary", world_sizes=(1, 2), vocab_size=8_192, global_batch_size=16, steps_per_block=1),
    Size(name="classifier", workload="sequence_classification", seq_len=256, global_batch_size=32, steps_per_block=1),
    Size(name="images", workload="image_classification", seq_len=64, global_batch_size=32, steps_per_block=1),
)
