"""Rows for the peers: real abstracts and photographs where a folder of them is named, else what is built in."""

import dataclasses
import functools
import itertools
import lzma
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA_VARIABLE = "DDP_COMPARE_DATA"
"""Environment variable: a folder with arxiv_abstracts.parquet, qwen2-tokenizer.json.xz and its tokenizer_config; for
images also images_sign_digits.tar."""
_BATCH_ROWS = 1_000
_PHOTOGRAPHS = "images_sign_digits.tar"


@dataclass(frozen=True)
class TokenRows:
    """Tokenised texts."""

    rows: list[np.ndarray]
    """Each (length,) int32, closed by the end-of-text token."""
    vocab_size: int
    """Ids are below."""
    label: str
    """Which texts and which tokenizer."""


def data_folder(named):
    """Return the folder that the option or else the environment names; None for the built-in text.

    Raises ValueError if it holds no abstracts.
    """
    folder = named or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if folder is not None and not (folder / "arxiv_abstracts.parquet").is_file():
        raise ValueError(f"{folder}: no arxiv_abstracts.parquet; allowed: a folder with it, or no folder")
    return folder


def _abstract_column(folder, name, num_rows):
    """Return the `text` or the `category` of the first abstracts."""
    import pyarrow.parquet as pq

    values = []
    with pq.ParquetFile(folder / "arxiv_abstracts.parquet") as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=[name]):
            values += batch.column(0).to_pylist()
            if len(values) >= num_rows:
                break
    return values[:num_rows]


@functools.cache
def token_rows(data, num_rows):
    """Return the first rows of the abstracts with Qwen2's tokenizer, or of the built-in text with its own."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if data is None:
            from tasks.data.builtin.corpus import read_corpus
            from tasks.data.builtin.tiny_models import NUM_TOKENIZER_ROWS, write_tiny_qwen2

            texts = list(itertools.islice(read_corpus(), max(num_rows, NUM_TOKENIZER_ROWS)))
            write_tiny_qwen2(folder, texts[:NUM_TOKENIZER_ROWS])
            label = "built-in documentation text with the built-in tokenizer"
        else:
            texts = _abstract_column(data, "text", num_rows)
            # As a transformers folder has it.
            (folder / "tokenizer.json").write_bytes(lzma.decompress((data / "qwen2-tokenizer.json.xz").read_bytes()))
            (folder / "tokenizer_config.json").write_bytes((data / "qwen2-tokenizer_config.json").read_bytes())
            label = "arXiv abstracts with the Qwen2 tokenizer"
        rows, size = _tokenised(folder, texts[:num_rows])
    return TokenRows(rows=rows, vocab_size=size, label=label)


def write_labelled_texts(data, folder, num_rows):
    """Write texts with their classes as rows/ and the built-in classifier for them as model/; return what they are.

    Classes are the packages of the built-in text, or the subjects of abstracts.
    """
    from tasks.data.builtin.corpus import read_corpus_by_package
    from tasks.data.builtin.tiny_models import NUM_TOKENIZER_ROWS, write_tiny_modernbert

    if data is None:
        labels, texts = map(list, zip(*itertools.islice(read_corpus_by_package(), num_rows), strict=True))
        label = "built-in documentation text, classes are its packages"
    else:
        labels = [name.partition(".")[0] for name in _abstract_column(data, "category", num_rows)]
        texts, label = _abstract_column(data, "text", num_rows), "arXiv abstracts, classes are their subjects"
    names = sorted(set(labels))
    (folder / "model").mkdir(parents=True)
    write_tiny_modernbert(folder / "model", texts[:NUM_TOKENIZER_ROWS], names)
    rows, _ = _tokenised(folder / "model", texts, is_framed=True)
    write_rows(folder / "rows", rows)
    np.save(folder / "rows" / "labels.npy", np.array([names.index(name) for name in labels], dtype=np.int64))
    return f"{label}, tokenizer and model built in"


def write_images(data, folder, num_rows, *, size):
    """Write images with their classes as rows/ and the built-in ResNet18 for them as model/; return what they are.

    Photographs of hands where there are any, else the built-in digits; `size`: pixels of a side.
    """
    from tasks.data.sources.image_models import write_image_network
    from tasks.data.sources.image_rows import decode_image, write_digits
    from tasks.params.local_files import list_image_files

    source, label = folder / "digits", "built-in digits"
    if data is not None and (data / _PHOTOGRAPHS).is_file():
        source, label = data / _PHOTOGRAPHS, "photographs of hands"
    else:
        write_digits(source)
    files = list_image_files(source)[:num_rows]
    names = sorted({file.label for file in files})
    images = np.empty((len(files), 3, size, size), dtype=np.uint8)
    for place, file in enumerate(files):
        with (source if file.offset is not None else source / file.name).open("rb") as opened:
            opened.seek(file.offset or 0)
            image = decode_image(opened.read(file.size), size=size)
        if isinstance(image, str):
            raise ValueError(f"{source}: {file.name}: {image}; allowed: images that can be decoded")
        images[place] = image.transpose(2, 0, 1)
    arrays = {
        "images": images,
        "labels": np.array([names.index(file.label) for file in files], dtype=np.int64),
        "row_ids": np.arange(len(files), dtype=np.int64),
    }
    for name in ("rows", "model"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / "rows" / f"{name}.npy", array)
    write_image_network(folder / "model", "resnet18", names)
    return f"{label}, {size} x {size} pixels"


def _tokenised(folder, texts, *, is_framed=False):
    """Return the tokens of each text, and the size of the vocabulary; `is_framed`: as the tokenizer frames a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    backend = tokenizer.backend_tokenizer
    end = [] if is_framed else [tokenizer.eos_token_id]
    rows = []
    for start in range(0, len(texts), _BATCH_ROWS):
        encodings = backend.encode_batch_fast(list(texts[start : start + _BATCH_ROWS]), add_special_tokens=is_framed)
        rows += [np.array([*encoding.ids, *end], dtype=np.int32) for encoding in encodings]
    return rows, len(tokenizer)


def write_rows(folder, rows, *, vocab_size=None):
    """Write rows as a slice (training/data/batches.py) and return its folder.

    With `vocab_size`, ids above are folded below it by their remainder: a small model then has the real lengths, and
    what a step costs does not depend on which id stands where.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.concatenate(rows).astype(np.int32)
    np.save(folder / "tokens.npy", tokens if vocab_size is None else tokens % vocab_size)
    np.save(folder / "offsets.npy", np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64))
    np.save(folder / "row_ids.npy", np.arange(len(rows), dtype=np.int64))
    return folder


def write_first_rows(folder, source, num_rows, *, vocab_size=None):
    """Write the first rows of a slice as one of their own; return its folder. `vocab_size` as above."""
    ends = np.load(source / "offsets.npy")[: num_rows + 1]
    return write_rows(folder, np.split(np.load(source / "tokens.npy")[: ends[-1]], ends[1:-1]), vocab_size=vocab_size)


def write_tiny_training(model, rows, texts):
    """Write the built-in model, its tokenizer made of these texts, and the texts as a slice; return their tokens."""
    from tokenizers import Tokenizer

    from tasks.data.builtin.tiny_models import write_tiny_qwen2

    write_tiny_qwen2(model, texts)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens = [np.array(tokenizer.encode(text).ids, dtype=np.int32) for text in texts]
    write_rows(rows, tokens)
    return tokens


def write_random_model(folder, config, *, device="cpu"):
    """Write a transformers folder with a model of this config and random fp32 weights; return the folder.

    `device`: where they are drawn, which a CPU takes many seconds for if they are many.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    settings = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    shape = AutoConfig.for_model(config["model_type"], **settings)
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(1)
        # from_config would build in the config's dtype.
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, trust_remote_code=False)
    model.save_pretrained(folder)
    return folder


def small_qwen2(vocab_size, **changes):
    """Return the config of a Qwen2 that 2 CPU cores can train: 4 layers of 192."""
    return {
        "model_type": "qwen2", "vocab_size": vocab_size, "hidden_size": 192, "intermediate_size": 512,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2_048,
        "tie_word_embeddings": True, "use_sliding_window": False, "bos_token_id": None, "eos_token_id": 0, **changes,
    }  # fmt: skip


def lengths_of(lengths, seq_len):
    """Return the mean tokens of rows of these after cutting, and the share of padding if all were `seq_len` long."""
    lengths = np.minimum(list(lengths), seq_len)
    return {"mean_tokens": float(lengths.mean()), "padding_share": float(1 - lengths.mean() / seq_len)}


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
    """Other fields of a language model's config than small_qwen2 has."""

    def write(self, folder, *, data):
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
