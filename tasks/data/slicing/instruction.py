"""The tokens of prompts and of their responses, each tokenised by itself: neither depends on the other."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.row_tokenizer import load_tokenizer
from tasks.data.slicing.tokens import CUT_RESPONSE, SPECIAL, Encoded, Texts
from tasks.data.sources.row_policy import Row
from tasks.params import Params
from tasks.params.prompts import fill_template
from tasks.process.bounded_child import bound_native_code
from tasks.process.failure import DataError
from tasks.records.manifests import ROWS, RawManifest
from training.process.files import digest_json

_TOO_LONG = "long_prompt"
_SECONDS = 60.0
_SAME_DAY = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}"
"""For templates that show the day, as Llama's do: with the present one, tomorrow's training would be another."""
_MARK = "9c1f4e7a"
"""Stands for the instruction while a chat template is asked what it puts around one."""


def open_rows(params: Params, *, raw: Path, base_model: Path) -> "Instructions":
    """Return the instructions of the data set, with the base model's tokenizer."""
    template = RawManifest.read(raw).template
    return Instructions(
        rows=raw / ROWS,
        tokenizer=load_tokenizer(base_model),
        workload=params.workload,
        template=template,
        around=None if template is not None else _ask_chat_template(base_model),
        seq_len=params.train.seq_len,
    )


@dataclass(frozen=True, kw_only=True)
class Instructions(Texts):
    """The instructions of a data set, whose slices become tokens with a prompt before each response."""

    template: str | None
    """The text that makes a prompt of an instruction."""
    around: tuple[str, str] | None
    """What the tokenizer's own template puts before and behind one; None where it is not used."""
    seq_len: int
    """Tokens of prompt and response at most: without one of the response there is nothing to learn from a row."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the arrays depend on, beside the rows."""
        return {**super().identity, "prompts": digest_json([self.template, self.around]), "seq_len": self.seq_len}

    def encode(self, rows: Mapping[int, Row]) -> Encoded:
        """Return the rows whose prompts leave room for a response; a longer response is cut in training."""
        prompts = self._encode_prompts(list(rows.values()), row_ids=list(rows))
        responses = self.tokenizer.rows([row.response or "" for row in rows.values()], row_ids=list(rows))
        tokens, lengths = dict[int, np.ndarray](), list[int]()
        counts: Counter[str] = Counter()
        for row_id, prompt, response in zip(rows, prompts, responses, strict=True):
            if len(prompt) >= self.seq_len:
                counts[_TOO_LONG] += 1
                continue
            counts[CUT_RESPONSE] += len(prompt) + len(response) > self.seq_len
            row = rows[row_id]
            texts = (row.text, row.context or "", row.response or "")
            counts[SPECIAL] += any(map(self.tokenizer.has_special_token, texts))
            tokens[row_id] = np.concatenate([np.array(prompt, dtype=np.int32), response])
            lengths.append(len(prompt))
        return Encoded(tokens, {"prompts": lengths}, counts)

    def _encode_prompts(self, rows: Sequence[Row], *, row_ids: Sequence[int]) -> list[list[int]]:
        if self.template is not None:
            texts = [fill_template(self.template, instruction=row.text, context=row.context or "") for row in rows]
            return self.tokenizer.prompts(texts, row_ids=row_ids)
        assert self.around is not None
        before, behind = map(self.tokenizer.encode_markup, self.around)
        texts = [f"{row.text}\n{row.context}" if row.context else row.text for row in rows]
        return [[*before, *ids, *behind] for ids in self.tokenizer.prompts(texts, row_ids=row_ids, is_framed=False)]


def _ask_chat_template(base_model: Path) -> tuple[str, str]:
    """Return what the tokenizer's template puts before and behind what a user says, up to where the answer begins.

    Raises DataError, in one line, if it has none, or one that changes what is said.
    """
    from transformers import AutoTokenizer

    place = "dataset.template: chat: the template of the base model's tokenizer"
    tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=False)
    if tokenizer.chat_template is None:
        raise DataError("dataset.template: got chat, and the base model's tokenizer has no such template; use dolly")
    said = [{"role": "user", "content": _MARK}]
    try:
        with bound_native_code(place, seconds=_SECONDS, remedy="use dataset.template: dolly"):
            template = tokenizer.get_chat_template()
            template = _SAME_DAY * ("strftime_now" in template) + template
            text = tokenizer.apply_chat_template(
                said, chat_template=template, tokenize=False, add_generation_prompt=True
            )
    except DataError:
        raise
    except Exception as error:  # whatever a template of somebody else's raises
        raise DataError(f"{place}: cannot be used ({type(error).__name__}: {str(error)[:200]}); use dolly") from None
    before, mark, behind = str(text).partition(_MARK)
    if not mark or not behind or _MARK in behind:
        raise DataError(f"{place}: does not put what a user says before what is answered; use dataset.template: dolly")
    return before, behind
