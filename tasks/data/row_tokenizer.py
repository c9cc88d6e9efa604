"""The tokenizer of a base model, as rows need it: no text becomes a control token, and none takes it for ever."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.process.bounded_child import bound_native_code, is_panic
from tasks.process.failure import DataError, StageError
from tasks.records.manifests import BaseModelManifest
from training.process.files import digest_json

_SECONDS_OF_A_BATCH = 120.0
_CHARACTERS_PER_SECOND = 50_000
"""Tokenizers do a million."""
_FEWEST_WORDS = 2


@dataclass(frozen=True)
class RowTokenizer:
    """Turns texts into the token ids of rows, each closed by `eos_token_id`.

    If `is_framed`, a text has what the tokenizer puts around it (a BOS, or [CLS] and [SEP]); what it puts behind closes
    the text then.
    """

    backend: Any
    eos_token_id: int
    vocab_size: int
    """Rows of the model's embedding: every id is below."""
    unk_token_id: int | None
    """What stands for what the tokenizer does not know; None where it knows all."""
    special_ids: frozenset[int]
    """Ids that no text may turn into."""
    special_tokens: tuple[str, ...]
    """How those look as text."""
    digest: str
    """sha256 over the tokenizer's files and the model's config.json."""
    is_framed: bool = False
    """Whether rows have what the tokenizer puts around a text."""

    def has_special_token(self, text: str) -> bool:
        """Return whether the text holds what looks like a special token; it stays text."""
        return any(token in text for token in self.special_tokens)

    def rows(self, texts: Sequence[str], *, row_ids: Sequence[int]) -> list[np.ndarray]:
        """Return one int32 array per text. What looks like a special token in a text is encoded as plain text.

        Raises DataError where an id does not exist in the model, naming the row, and where the tokenizer panics; ends
        the process in one line where it takes minutes.
        """
        rows = []
        for encoding in self._encode(texts, row_ids=row_ids, is_framed=self.is_framed):
            # Of a text that became nothing, what stands before it is no end.
            is_closed = self.is_framed and encoding.special_tokens_mask[-2:] in ([0, 1], [1, 1])
            rows.append(np.array([*encoding.ids, *([] if is_closed else [self.eos_token_id])], dtype=np.int32))
        return rows

    def describe_frame(self) -> tuple[str, str]:
        """Return what stands before and behind each text, as text."""
        (row,), (encoding,) = self.rows(["a"], row_ids=[]), self._encode(["a"], row_ids=[], is_framed=self.is_framed)
        mask = encoding.special_tokens_mask
        start, number = [*mask, 0].index(0), mask.count(0)
        shown = [self.backend.id_to_token(token) for token in row.tolist()]
        return "".join(shown[:start]), "".join(shown[start + number :])

    def prompts(self, texts: Sequence[str], *, row_ids: Sequence[int], is_framed: bool = True) -> list[list[int]]:
        """Return the ids of texts that something follows; raises as `rows` does.

        `is_framed`: behind what the tokenizer puts before a text.
        """
        results = []
        for encoding in self._encode(texts, row_ids=row_ids, is_framed=is_framed):
            ids = list(encoding.ids)
            while ids and is_framed and encoding.special_tokens_mask[len(ids) - 1]:
                ids.pop()
            results.append(ids)
        return results

    def encode_markup(self, text: str) -> list[int]:
        """Return the ids of a text of the tokenizer's own, whose special tokens are such."""
        self.backend.encode_special_tokens = False
        try:
            return list(self.backend.encode(text, add_special_tokens=False).ids)
        finally:
            self.backend.encode_special_tokens = True

    def _encode(self, texts: Sequence[str], *, row_ids: Sequence[int], is_framed: bool) -> list[Any]:
        """Return what the tokenizer makes of each; `is_framed`: with what it puts around a text."""
        seconds = _SECONDS_OF_A_BATCH + sum(map(len, texts)) / _CHARACTERS_PER_SECOND
        what = f"tokenizer of the base model, rows {row_ids[0]} to {row_ids[-1]}" if row_ids else "tokenizer"
        remedy = "its tokenizer.json has a pattern too hard for these texts: use another tokenizer or other rows"
        with translate_errors(what), bound_native_code(what, seconds=seconds, remedy=remedy):
            encodings: list[Any] = self.backend.encode_batch_fast(texts, add_special_tokens=is_framed)
        for row_id, encoding in zip(row_ids or itertools.repeat("of a tokenizer"), encodings, strict=False):
            added = encoding.special_tokens_mask if is_framed else itertools.repeat(0)
            own = [token for token, is_added in zip(encoding.ids, added, strict=False) if not is_added]
            if (highest := max([self.eos_token_id, *encoding.ids])) >= self.vocab_size:
                raise DataError(
                    f"row {row_id}: the tokenizer gives id {highest}, and the model's embedding has "
                    f"{self.vocab_size} rows; use the tokenizer that belongs to the model"
                )
            if not self.special_ids.isdisjoint(own):
                raise DataError(
                    f"row {row_id}: the tokenizer turns part of the text into a special token; "
                    "use a tokenizer that encodes special tokens as text when asked to"
                )
        return encodings


def load_tokenizer(base_model: Path, *, is_framed: bool = False, has_labels: bool = False) -> RowTokenizer:
    """Return the tokenizer of a model folder. Raises DataError if it has no fast one, no words or no end-of-text token.

    To classify texts (`has_labels`), a separator will do for that token.
    """
    from transformers import AutoConfig, AutoTokenizer

    manifest = BaseModelManifest.read(base_model)
    place, no_tokenizer = f"model.source {manifest.source}", ("generation_config.json", ".safetensors", ".index.json")
    # config.json says which class of tokenizer reads the others.
    files = {name: digest for name, digest in manifest.files.items() if not name.endswith(no_tokenizer)}
    words: set[str] = set()
    if files.keys() - {"config.json"}:
        with translate_errors(f"{place}: tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=False)
            words = set(tokenizer.get_vocab()).difference(tokenizer.all_special_tokens)
            config = AutoConfig.from_pretrained(base_model, trust_remote_code=False)
    # Where its files are missing, transformers may make one of special tokens alone.
    if len(words) < _FEWEST_WORDS:
        raise DataError(
            f"{place}: the tokenizer has no vocabulary, as where its files are missing; save the model's own beside it "
            "(tokenizer.save_pretrained)"
        )
    if not tokenizer.is_fast:
        raise DataError(f"{place}: has no fast tokenizer; save one with a tokenizer.json beside the model")
    end = tokenizer.eos_token_id
    if end is None and (not has_labels or (end := tokenizer.sep_token_id) is None):
        raise DataError(f"{place}: the tokenizer names no eos_token, which ends every row; set it")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return RowTokenizer(
        backend=backend,
        eos_token_id=end,
        vocab_size=config.get_text_config().vocab_size,
        unk_token_id=tokenizer.unk_token_id if tokenizer.unk_token_id != end else None,
        special_ids=frozenset(tokenizer.all_special_ids) - {tokenizer.unk_token_id} | {end},
        special_tokens=tuple(tokenizer.all_special_tokens),
        digest=digest_json(files),
        is_framed=is_framed,
    )


@contextlib.contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Turn any complaint of a library about a file that is not ours into one line with exit code 3."""
    try:
        yield
    except BaseException as error:
        # The Rust libraries raise plain Exception, or panic.
        if isinstance(error, StageError | MemoryError) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{what}: cannot be used ({type(error).__name__}: {reason})") from None
