"""Whether model, tokenizer and rows can be trained: tried on the first rows and one small step.

What is found would else be trained silently, or end a rank an hour later.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.row_tokenizer import translate_errors
from tasks.data.slicing import find_slicing
from tasks.data.slicing.tokens import Texts
from tasks.data.sources.models import load_classifier, require_all_weights
from tasks.data.sources.row_policy import QUARANTINED, Row, read_rows
from tasks.machine.host_facts import read_free_memory_bytes
from tasks.params import Params
from tasks.params.choices import has_labels
from tasks.process.failure import DataError
from tasks.records.facts import TokenisedFacts
from tasks.records.manifests import ROWS, BaseModelManifest, RawManifest

_MOST_ROWS = 1_000
_MOST_UNKNOWN, _MOST_WITHOUT_TARGET, _MOST_EQUAL = 0.1, 0.05, 0.1
"""Shares: of tokens, and of rows."""
_OTHER_TOKENIZER = "use the tokenizer that belongs to the model, or a model for what these rows are written in"
_FEW_TOKENS = 16
_MOST_TOKENS = 8_192
"""Of the longest row that is tried."""
_MOST_LAYERS = 8
_BYTES_PER_PARAMETER = 8
_NOTHING = 1e-5
"""Of the largest value: what rounding makes of a sum in another order."""


def check_fitness(params: Params, raw: Path, base_model: Path) -> TokenisedFacts:
    """Return what the first rows become. Raises DataError, in one line, if they or the model cannot be trained on."""
    manifest = RawManifest.read(raw)
    slicer: Any = find_slicing(params.workload).open_rows(params, raw=raw, base_model=base_model)
    numbered = enumerate(row for _, batch in read_rows(raw / ROWS, 0, _MOST_ROWS) for row in batch)
    rows = {row_id: row for row_id, row in numbered if row.fault not in QUARANTINED}
    tokens: Mapping[int, np.ndarray] = slicer.encode(rows).tokens
    result = _count(rows, tokens, slicer, is_labelled=has_labels(params.workload))
    place = f"model.source {params.model.source}"
    _require_words(result, place, manifest.source, has_prompts=params.dataset.holds_instructions)
    with translate_errors(place):
        # What a tokenizer does not know may leave no token at all.
        written = sum(_count_letters("".join(rows[row_id].parts)) for row_id in tokens)
        spelled = sum(_count_letters(slicer.tokenizer.backend.decode(row.tolist())) for row in tokens.values())
        if spelled < (1 - _MOST_UNKNOWN) * written:
            raise DataError(
                f"{place}: its tokens spell {spelled / written:.0%} of the letters of {manifest.source}; allowed: at "
                f"least {1 - _MOST_UNKNOWN:.0%}; {_OTHER_TOKENIZER}"
            )
        model = _load(params, base_model)
    _try(params, model, [row for row in tokens.values() if len(row) > (0 if has_labels(params.workload) else 1)])
    return result


def try_weights(params: Params, folder: Path) -> None:
    """Try a folder of one's own as check_fitness does, on ids in place of rows, which a rehearsal has none of."""
    with translate_errors(f"model.source {params.model.source}"):
        model = load_classifier(folder, ("0", "1")).eval() if has_labels(params.workload) else _load(params, folder)
    _try(params, model, [np.arange(_FEW_TOKENS)])


def _try(params: Params, model: Any, texts: list[np.ndarray]) -> None:
    place = f"model.source {params.model.source}"
    # Whatever its forward raises.
    with translate_errors(f"{place}: {type(model).__name__}"):
        _require_gradients(model, params, texts, place)
        from torch import nn

        config = model.config.get_text_config()
        number = getattr(config, "num_hidden_layers", 0)
        few = _count_telling_layers(config)
        for module in list(model.modules()):
            for name, layers in module.named_children():
                if isinstance(layers, nn.ModuleList) and len(layers) == number > few and "expert" not in name:
                    setattr(module, name, layers[:few])
        if not has_labels(params.workload):
            _require_causal(model, texts, place)
        _require_separate_rows(model, params, texts, place)


def _count_letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _count(
    rows: Mapping[int, Row], tokens: Mapping[int, np.ndarray], texts: Texts, *, is_labelled: bool
) -> TokenisedFacts:
    tokenizer = texts.tokenizer
    num_tokens = sum(map(len, tokens.values()))
    num_unknown = sum(int((row == tokenizer.unk_token_id).sum()) for row in tokens.values())
    lost = len(rows) - len(tokens)
    seen, num_equal = dict[bytes, bytes](), 0
    for row_id, row in tokens.items():
        wording = rows[row_id].wording
        num_equal += seen.setdefault(row.tobytes(), wording) != wording
    before, behind = tokenizer.describe_frame()
    return TokenisedFacts(
        num_rows=len(rows), num_tokens=num_tokens, unknown_share=num_unknown / max(num_tokens, 1),
        num_rows_without_target=lost + (0 if is_labelled else sum(len(row) < 2 for row in tokens.values())),
        num_equal_rows=num_equal, before=before, behind=behind,
    )  # fmt: skip


def _require_words(facts: TokenisedFacts, place: str, source: str, *, has_prompts: bool) -> None:
    """Raise DataError unless the rows are still told apart by their tokens."""
    where = f"of the first {facts.num_rows:,} rows of {source}"
    remedy = _OTHER_TOKENIZER
    if facts.unknown_share > _MOST_UNKNOWN:
        raise DataError(
            f"{place}: its tokenizer knows {1 - facts.unknown_share:.1%} {where}, by tokens; allowed: at least "
            f"{1 - _MOST_UNKNOWN:.0%}; {remedy}"
        )
    empty = f"leave nothing to learn from; allowed: at most {_MOST_WITHOUT_TARGET:.0%}; {remedy}"
    if has_prompts:
        empty = "have prompts that fill train.seq_len; set a larger one, or a shorter dataset.template"
    equal = f"become the tokens of another row that says something else; allowed: at most {_MOST_EQUAL:.0%}; {remedy}"
    for number, most, why in (
        (facts.num_rows_without_target, _MOST_WITHOUT_TARGET, empty), (facts.num_equal_rows, _MOST_EQUAL, equal),
    ):  # fmt: skip
        if number > most * facts.num_rows:
            raise DataError(f"{place}: {number:,} {where} {why}")


def _load(params: Params, base_model: Path) -> Any:
    """Return the model in fp32; where memory holds no step of it, its first layers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    config = AutoConfig.from_pretrained(base_model, local_files_only=True, trust_remote_code=False)
    config.use_cache = False
    manifest = BaseModelManifest.read_if_there(base_model)
    is_whole = True
    # A file of 16 bits has two bytes for each.
    most = sum(file.stat().st_size for file in base_model.glob("*.safetensors")) // 2
    if (manifest.num_parameters if manifest else most) * _BYTES_PER_PARAMETER > read_free_memory_bytes()[0]:
        few = _count_telling_layers(config)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:few]
        config.num_hidden_layers = few
        is_whole = False
    kind = AutoModelForSequenceClassification if has_labels(params.workload) else AutoModelForCausalLM
    model, pretrained = kind.from_pretrained(
        base_model, config=config, dtype=torch.float32, local_files_only=True, trust_remote_code=False,
        ignore_mismatched_sizes=True, output_loading_info=True,
    )  # fmt: skip
    require_all_weights(model, pretrained if is_whole else {**pretrained, "unexpected_keys": []})
    return model.eval()


def _require_gradients(model: Any, params: Params, texts: list[np.ndarray], place: str) -> None:
    """Raise DataError unless one small step has a finite loss that every parameter has a part in."""
    batch = _collate(params, [row[:_FEW_TOKENS] for row in texts[:2]])
    loss = _workload(params).loss_sum(model, batch)
    if not loss.isfinite():
        raise DataError(f"{place}: the loss of the first rows is {loss.item()}; allowed: a finite one")
    loss.backward()
    named = [(name, part) for name, part in model.named_parameters() if part.requires_grad]
    # An expert that no token of so few was sent to has none.
    unused = [name for name, part in named if part.grad is None and "expert" not in name]
    model.zero_grad(set_to_none=True)
    if unused and params.train.adapter is None:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise DataError(
            f"{place}: the loss does not depend on {unused[0]}{more}; allowed: parameters that are trained; use a "
            "model without them"
        )


def _count_telling_layers(config: Any) -> int:
    """Return how many of the first layers have one of every kind."""
    kinds = getattr(config, "layer_types", None) or []
    return max([2, *(kinds.index(kind) + 1 for kind in set(kinds))][:_MOST_LAYERS])


def _require_causal(model: Any, texts: list[np.ndarray], place: str) -> None:
    """Raise DataError if a position sees the token that it is to predict, or a later one."""
    import torch

    from training.model.attention_kernels import skip_mask_checks

    ids = torch.from_numpy(np.resize(texts[0], (1, _FEW_TOKENS)).astype(np.int64))
    seen: list[Any] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, __, output: seen.append(output))
    with hook, skip_mask_checks(is_padded=False):
        logits = model(input_ids=ids, use_cache=False, attention_mask=torch.ones_like(ids)).logits[0]
    half = _FEW_TOKENS // 2
    mixed = torch.linspace(-1, 1, logits.shape[-1]).roll(1)
    (gradient,) = torch.autograd.grad((logits[:half] * mixed).sum(), seen[:1], allow_unused=True)
    if gradient is None:
        return
    of_tokens = gradient.flatten(0, 1).abs().amax(-1)
    if of_tokens[half:].max() > _NOTHING * of_tokens.max():
        raise DataError(
            f"{place}: positions see the tokens that they are to predict, as in an encoder; allowed: a causal model "
            "(of some, one with is_decoder: true in config.json), or workload: sequence_classification"
        )


def _require_separate_rows(model: Any, params: Params, texts: list[np.ndarray], place: str) -> None:
    """Raise DataError unless rows of train.seq_len tokens are taken, and a row is the same beside a longer one."""
    import torch

    seq_len, whole = params.train.seq_len, np.concatenate(texts)
    config = model.config.get_text_config()
    most = getattr(config, "max_position_embeddings", None)
    allowed = f"train.seq_len: {seq_len}, and {place} has positions for"
    if most and 0 < most < seq_len:
        raise DataError(f"{allowed} {most}; use fewer, or a model for longer rows")
    short, long = texts[0][:_FEW_TOKENS], np.resize(whole, min(seq_len, _MOST_TOKENS))
    hidden: list[Any] = []
    if has_labels(params.workload):
        hook = model.base_model.register_forward_hook(lambda _, __, output: hidden.append(output[0]))
    else:
        hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    try:
        with hook, torch.no_grad():
            for rows in ([short], [short, long]):
                _workload(params).loss_sum(model, _collate(params, rows, seq_len=len(long), learns_last=len(rows) == 1))
    except (IndexError, RuntimeError) as error:
        raise DataError(
            f"{allowed} fewer ({type(error).__name__}: {' '.join(str(error).split())[:200]}); use fewer"
        ) from None
    alone, beside = (result[0, : len(short)] for result in hidden[-2:])
    if (alone - beside).abs().max() > _NOTHING * alone.abs().max():
        raise DataError(
            f"{place}: what a row gives depends on the rows beside it in a micro-batch of train.seq_len {seq_len} (as "
            "where the longest decides how positions count), so that other numbers of ranks are another training; use "
            "fewer tokens, or another model"
        )


def _workload(params: Params) -> Any:
    from training.workloads import find_workload

    return find_workload(params.workload)


def _collate(params: Params, rows: list[np.ndarray], *, seq_len: int = _FEW_TOKENS, learns_last: bool = True) -> Any:
    """Return the rows as one micro-batch of the workload; of the last, nothing is learned unless told."""
    from training.data.batches import Slice
    from training.data.labelled_texts import LabelledTexts

    ends = [0, *itertools.accumulate(map(len, rows))]
    given = [1] * (len(rows) - 1) + [1 if learns_last else len(rows[-1])]
    texts = Slice(
        tokens=np.concatenate(rows), offsets=np.array(ends), row_ids=np.arange(len(rows)), num_given=np.array(given)
    )
    number = range(len(rows))
    if has_labels(params.workload):
        return LabelledTexts(texts=texts, labels=np.array(number) % 2).collate(number, seq_len=seq_len)
    return texts.collate(number, seq_len=seq_len)
