"""A model, its tokenizer and rows that would be trained on silently, or end a rank: one line in `download`."""

import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, normalizers, processors
from tokenizers import models as token_models

from tasks.data.sources.models import fetch_config
from tasks.download import download_model, download_rows, require_fitness
from tasks.params.sources import ModelParams
from tasks.process import bounded_child
from tasks.process.bounded_child import BoundedChild
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.manifests import RawManifest
from tasks.rehearsal.inputs import gather_inputs
from tests.tasks.local_rows import RAW, TEXTS, ask, cut, download, read_defaults, write_columns
from tests.tasks.reporting.comparison import edit_json
from training.model.weights import without_deepspeed

MODELS = YAML(typ="safe", pure=True).load(Path(__file__).with_name("small_models.yaml"))
CLASSES = {"workload": "sequence_classification"}
MODEL = {"source": "path:model", "name": "m"}
BASE_MODEL, CONFIG, WEIGHTS = Path("data/base_model"), Path("model/config.json"), Path("model/model.safetensors")
WORDS = token_models.WordLevel({"[UNK]": 0, "</s>": 1, "one": 2, "two": 3}, unk_token="[UNK]")


class _Here:
    """Runs in this process what a child would run."""

    def run(self, function, *arguments, what, num_bytes=0):
        return function(*arguments)


@pytest.fixture(autouse=True)
def _folder(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with without_deepspeed():
        yield


def write_model(kind, *, tokenizer, head="AutoModelForCausalLM", **more):
    """Write the folder `model` of that architecture, with random weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**MODELS["small"], **more})
    getattr(transformers, head).from_config(config).save_pretrained("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if tokenizer is not None:
            shutil.copy(tokenizer / name, "model")


def try_model(*, child=None, texts=TEXTS, dataset=None, **changes):
    """Do what `download` does with the folder `model` and the texts; return what is recorded."""
    columns, told = {"text": texts}, dataset or {}
    if changes.get("workload") == "sequence_classification":
        columns, told = {**columns, "label": [number % 2 for number in range(len(texts))]}, {"label": "label"}
    params = ask(write_columns("jsonl", columns) | told, model=MODEL, **changes)
    child = child or _Here()
    download_rows(params, RAW, source_digest=None)
    download_model(params, BASE_MODEL, class_names=RawManifest.read(RAW).class_names, child=child)
    require_fitness(params, RAW, BASE_MODEL, child=child)
    return RawManifest.read(RAW).tokenised


def test_what_the_first_rows_become_is_recorded(tiny_qwen2):
    write_model("llama", tokenizer=tiny_qwen2)
    found = try_model(texts=[*TEXTS[:29], "a"])
    assert (found.num_rows, found.unknown_share, found.num_rows_without_target, found.num_equal_rows) == (30, 0, 0, 0)
    assert (found.before, found.behind) == ("", "<|endoftext|>")
    framed = Tokenizer.from_file("model/tokenizer.json")
    framed.post_processor = processors.TemplateProcessing(single="B $A", special_tokens=[("B", 1)])
    framed.save("model/tokenizer.json")
    framed = try_model()
    assert (framed.before != "", framed.behind) == (True, "<|endoftext|>")
    assert framed.num_tokens == try_model(dataset={"add_special_tokens": False}).num_tokens + 30


@pytest.mark.parametrize("kind", ["qwen2", "gemma2"])
def test_a_model_without_its_vocabulary_is_refused(kind):
    write_model(kind, tokenizer=None, embedding_size=32, head_dim=8)
    with pytest.raises(DataError, match=r"^model.source path:model: the tokenizer has no vocabulary"):
        try_model()


@pytest.mark.parametrize(("says", "kind", "more", "changes"), MODELS["refused"])
def test_a_model_that_cannot_be_trained_so_is_refused(says, kind, more, changes, tiny_qwen2):
    head = "AutoModelForSequenceClassification" if changes else "AutoModelForCausalLM"
    write_model(kind, tokenizer=tiny_qwen2, head="AutoModel" if kind == "t5" else head, **more)
    with pytest.raises(DataError, match=says):
        try_model(**changes)


def _gather(params):
    with gather_inputs(params):
        pass


def test_a_rehearsal_tries_local_weights_as_download_does(tiny_qwen2, monkeypatch):
    # The command tries them in a fork; no process can be forked to compute gradients once it has computed one.
    monkeypatch.setattr("tasks.rehearsal.inputs.BoundedChild", lambda: contextlib.nullcontext(_Here()))
    write_model("fnet", tokenizer=tiny_qwen2, head="AutoModelForMaskedLM")
    with pytest.raises(ConfigurationError, match=r"^model.source path:model: .*depends on the rows beside it"):
        _gather(ask({"source": "builtin:docstrings", "label": "package"}, model=MODEL, **CLASSES))
    shutil.rmtree("model")
    write_model("llama", tokenizer=tiny_qwen2)
    _gather(ask(model=MODEL))


def test_a_rehearsal_takes_no_rows_and_no_model_that_another_comparison_left(tiny_qwen2):
    write_model("llama", tokenizer=None)
    WEIGHTS.unlink()
    params = ask(write_columns("jsonl", {"text": TEXTS}), model=MODEL)
    download(params)
    cut(params, tiny_qwen2)
    shutil.copytree(tiny_qwen2, BASE_MODEL)
    edit_json(BASE_MODEL / "manifest.json", source=MODEL["source"])
    shutil.copy("rows.jsonl", "other.jsonl")
    for asked, is_own in ((params, True), (ask({"source": "path:other.jsonl"}, model=MODEL), False)):
        with gather_inputs(asked) as inputs:
            kind = json.loads((inputs.model_dir / "config.json").read_bytes())["model_type"]
            assert (inputs.slices == {"0-20": Path("data/slices/0-20")}, kind == "qwen2") == (is_own, is_own)


def test_a_rehearsal_asks_for_no_more_positions_and_rows_than_there_are():
    write_model("llama", tokenizer=None)
    WEIGHTS.unlink()
    dataset = write_columns("jsonl", {"text": TEXTS})
    with pytest.raises(ConfigurationError, match="row 90 is"):
        _gather(ask(dataset, model=MODEL, heldout="30-90"))
    edit_json(CONFIG, max_position_embeddings=64)
    with pytest.raises(ConfigurationError, match="path:model has positions for 64"):
        _gather(ask(dataset, model=MODEL))


def test_causal_models_are_taken_whatever_they_are_called(tiny_qwen2):
    for kind, more in MODELS["taken"].items():
        shutil.rmtree("model", ignore_errors=True)
        write_model(kind, tokenizer=tiny_qwen2, **more)
        assert try_model().num_rows == 30


def _write_weights(weights):
    save_file(weights, WEIGHTS, metadata={"format": "pt"})


def test_weights_that_are_not_all_there_are_refused(tiny_qwen2):
    write_model("llama", tokenizer=tiny_qwen2, tie_word_embeddings=False)
    norm, head = "model.norm.weight", "lm_head.weight"
    # Copies: the file that they are mapped from is written anew.
    whole = {name: part.clone() for name, part in load_file(WEIGHTS).items()}
    behind = {"model.layers.3.mlp.up_proj.weight": whole["model.layers.2.mlp.up_proj.weight"].clone()}
    for says, weights in (
        (f"the weights lack {norm}", {name: part for name, part in whole.items() if name != norm}),
        (
            rf"{head} has the shape \[2000, 32\] in the weights, and \[2048, 32\] by config.json",
            whole | {head: whole[head][:2_000].clone()},
        ),
        (f"{norm} is float8_e4m3fn: quantised weights", whole | {norm: whole[norm].to(torch.float8_e4m3fn)}),
        (f"the weights have {next(iter(behind))}, and config.json has fewer layers", whole | behind),
        (f"the weights have another {head} than what config.json ties it to", whole),
    ):
        edit_json(CONFIG, tie_word_embeddings=weights is whole)
        _write_weights(weights)
        with pytest.raises(DataError, match=says):
            try_model()


def test_a_classifier_whose_body_is_not_whole_is_refused(tiny_qwen2):
    write_model("bert", tokenizer=tiny_qwen2, head="AutoModelForMaskedLM")
    try_model(**CLASSES)
    weights = load_file(WEIGHTS)
    del weights["bert.encoder.layer.1.output.dense.bias"]
    _write_weights(weights)
    with pytest.raises(DataError, match=r"the weights lack bert.encoder.layer.1.output.dense.bias"):
        try_model(**CLASSES)


def test_a_config_that_takes_all_memory_is_refused(tiny_qwen2, monkeypatch):
    write_model("llama", tokenizer=tiny_qwen2)
    edit_json(CONFIG, id2label={str(number): "x" for number in range(300_000)})
    monkeypatch.setattr(bounded_child, "_SPARE_BYTES", 2**26)
    with pytest.raises(DataError, match=r"path:model.*(memory|cannot be used)"), BoundedChild() as child:
        try_model(child=child)


@pytest.mark.parametrize(
    ("says", "model", "normalizer"),
    [
        ("its tokenizer knows", WORDS, None),
        ("rows 0 to 29: cannot be used", token_models.WordLevel({"one": 0, "two": 1}, unk_token="none"), None),
        (r"its tokens spell \d\d% of", token_models.BPE({sign: ord(sign) for sign in "e0123456789"}, []), None),
        ("become the tokens of another", WORDS, normalizers.Replace(Regex(".+"), "one")),
        ("memory", WORDS, normalizers.Sequence([normalizers.Replace("e", "e" * 10)] * 9)),
    ],
    ids=["unknown", "raises", "silent", "equal", "bomb"],
)  # fmt: skip
def test_a_tokenizer_that_loses_the_texts_or_bursts_is_refused(says, model, normalizer, monkeypatch):
    write_model("llama", tokenizer=None)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.save("model/tokenizer.json")
    tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "</s>"}
    Path("model/tokenizer_config.json").write_text(json.dumps(tokens))
    monkeypatch.setattr(bounded_child, "_SPARE_BYTES", 2**29)
    with pytest.raises(DataError, match=says), BoundedChild() as child:
        try_model(child=child)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_what_is_no_file_is_refused_and_never_read(name, tiny_qwen2):
    write_model("llama", tokenizer=tiny_qwen2)
    for make in (lambda file: file.symlink_to("/dev/zero"), os.mkfifo):
        Path("model", name).unlink()
        make(Path("model", name))
        with pytest.raises(ValueError, match=r"no file"):
            try_model()


@pytest.mark.parametrize(
    ("says", "content"),
    [
        ("quantised weights cannot be trained", '{"quantization_config": {"quant_method": "fp8"}}'),
        ("transformers_weights names 'other.safetensors'", '{"transformers_weights": "other.safetensors"}'),
        ("num_labels is 1,000,000,000", '{"num_labels": 1000000000}'),
        ("num_hidden_layers is 3000000", '{"model_type": "llama", "num_hidden_layers": 3000000}'),
        (r"config.json: cannot be used \(RecursionError", '{"a":' * 100_000),
        (r"config.json: cannot be used \(500,000,000 bytes", None),
    ],
)
def test_a_config_that_asks_for_more_than_a_model_is_refused(says, content, tmp_path):
    CONFIG.parent.mkdir()
    CONFIG.write_text(content or "{")
    if content is None:
        os.truncate(CONFIG, 500_000_000)
    with pytest.raises(DataError, match=says):
        fetch_config(ModelParams(**MODEL), tmp_path / "fetched", commit=None, is_classifier=False)


@pytest.mark.parametrize(
    ("template", "seq_len", "says"),
    [("chat", 128, "memory|MemoryError"), ("dolly", 16, r"30 of .* fill train.seq_len; .* dataset.template")],
)
def test_prompts_that_burst_or_leave_no_room_for_a_response_are_refused(
    template, seq_len, says, tiny_qwen2, monkeypatch
):
    write_model("llama", tokenizer=tiny_qwen2)
    Path("model/chat_template.jinja").write_text("{{ ('x' * 6000000000)|length }}")
    dataset = write_columns("jsonl", {"instruction": TEXTS, "response": TEXTS})
    train = read_defaults()["train"] | {"seq_len": seq_len}
    params = ask({**dataset, "template": template}, model=MODEL, workload="instruction", train=train)
    download_rows(params, RAW, source_digest=None)
    download_model(params, BASE_MODEL)
    monkeypatch.setattr(bounded_child, "_SPARE_BYTES", 2**30)
    with BoundedChild() as child, pytest.raises(DataError, match=says):
        require_fitness(params, RAW, BASE_MODEL, child=child)
