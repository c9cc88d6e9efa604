"""Instructions: from columns of a data set to prompts, and to tokens of which the response alone is learned."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from tasks.data.slicing.instruction import _ask_chat_template
from tasks.data.sources.row_policy import QUARANTINED
from tasks.evaluating.heldout_rows import select_rows
from tasks.params.prompts import TEMPLATES, fill_template, read_template
from tasks.process.failure import DataError
from tests.tasks.local_rows import ask, cut, download, write_columns
from tests.tiny import with_manifest
from training.workloads import instruction as workload

DOLLY = TEMPLATES["dolly"]
pytestmark = pytest.mark.usefixtures("folder")
ROWS = [
    {
        "instruction": f"Say {number}.", "context": f"About the number {number}." if number % 2 else "",
        "response": f"It is {number}.",
    }
    for number in range(30)
]  # fmt: skip
"""With Databricks' names; every other one has a context."""


def asked(rows=ROWS, kind="jsonl", dataset=None):
    """Write the rows as a local data set; return a comparison on them as instructions."""
    source = write_columns(kind, {name: [row[name] for row in rows] for name in rows[0]})
    return ask({"template": "dolly", **source, **(dataset or {})}, workload="instruction")


def sliced(params, base_model):
    """Return the rows of a slice as training opens them, and what its manifest says."""
    download(params)
    facts = cut(params, base_model)["slices"]["0-20"]
    return workload.open_slice(Path("data/slices/0-20")), facts


@pytest.mark.parametrize(
    ("kind", "names", "keys"),
    [
        ("jsonl", ("instruction", "context", "response"), ()),
        ("parquet", ("instruction", "input", "output"), ()),
        ("parquet", ("question", "about", "answer"), ("instruction_column", "context_column", "response_column")),
    ],
)
def test_columns_are_found_by_the_names_that_databricks_and_huggingface_gave_them_or_that_are_given(kind, names, keys):
    rows = [dict(zip(names, row.values(), strict=True)) for row in ROWS]
    found, manifest = download(asked(rows, kind, dict(zip(keys, names, strict=False))))
    assert [[row["text"], row["context"], row["response"]] for row in found] == [[*row.values()] for row in ROWS]
    assert (manifest["template"], manifest["text_column"]) == (DOLLY, None)


def test_a_column_that_is_not_there_is_named_and_a_context_may_be_missing():
    rows = [{"question": row["instruction"], "answer": row["response"]} for row in ROWS]
    dataset = {"instruction_column": "question", "response_column": "answer"}
    found, _ = download(asked(rows, "parquet", dataset))
    assert {row["context"] for row in found} == {""}
    for more, says in (
        ({}, r"no column 'instruction'; the columns there are: 'answer', 'question'; set"),
        ({**dataset, "context_column": "about"}, r"no column 'about'; .* set dataset.context_column"),
    ):
        with pytest.raises(DataError, match=says):
            download(asked(rows, "parquet", more))


def test_a_row_without_instruction_or_response_is_left_out_and_one_without_context_is_not():
    rows = copy.deepcopy(ROWS)
    rows[3]["response"], rows[5]["context"] = " ", None
    found, manifest = download(asked(rows))
    assert manifest["quarantined"] == {"blank": 1}
    assert (found[3]["fault"], found[5]["fault"], found[5]["context"]) == ("blank", None, "")
    rows[4]["instruction"], rows[6]["response"] = None, None
    with pytest.raises(DataError, match=r"2 rows are null, the first is row 4.*set dataset\.instruction_column"):
        download(asked(rows))


def test_prompt_and_response_are_tokenised_apart_and_the_response_is_closed(tiny_qwen2):
    rows, facts = sliced(asked(), tiny_qwen2)
    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen2)
    for number, row in enumerate(ROWS[:20]):
        about = f"{row['instruction']}\n{row['context']}".rstrip("\n")
        prompt = DOLLY.replace("{instruction}", about)
        tokens, given = rows.row(number, 10_000), int(rows.num_given[number])
        assert tokens[:given].tolist() == tokenizer(prompt).input_ids
        assert tokens[given:].tolist() == [*tokenizer(row["response"]).input_ids, tokenizer.eos_token_id]
    assert (facts["num_rows"], facts["quarantined"]) == (20, {})
    assert facts["num_tokens"] == len(rows.tokens)
    assert rows.num_targets(10_000).sum() == len(rows.tokens) - rows.num_given.sum()


def test_a_long_response_is_cut_a_row_without_one_left_out_and_what_looks_like_a_special_token_is_text(tiny_qwen2):
    rows = copy.deepcopy(ROWS)
    rows[2]["context"] = rows[7]["response"] = "word " * 300
    rows[1]["instruction"], rows[3]["response"] = "Say <|endoftext|>.", "<|endoftext|> it is."
    found, facts = sliced(asked(rows), tiny_qwen2)
    assert facts["quarantined"] == {"long_prompt": 1}
    assert (facts["num_cut_responses"], facts["num_special_token_rows"]) == (1, 2)
    assert "seq_len" in QUARANTINED["long_prompt"]
    assert found.row_ids.tolist() == [row for row in range(20) if row != 2]
    assert (found.num_targets(128) > 0).all()
    assert found.num_targets(128)[6] == 128 - found.num_given[6]
    end = AutoTokenizer.from_pretrained(tiny_qwen2).eos_token_id
    assert [(found.row(row, 10_000) == end).sum() for row in range(19)] == [1] * 19


def with_chat_template(model, template, into):
    """Copy a model folder, whose tokenizer then has this template for conversations."""
    shutil.copytree(model, into)
    (into / "chat_template.jinja").write_text(template)
    return with_manifest(into, num_parameters=0, model_type="qwen2")


CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_the_tokenizers_own_template_has_its_special_tokens_and_the_text_in_it_has_none(tiny_qwen2):
    model = with_chat_template(tiny_qwen2, CHAT, Path("chat"))
    rows = copy.deepcopy(ROWS)
    rows[1]["instruction"] = "Say <|endoftext|>"
    found, _ = sliced(asked(rows, dataset={"template": "chat"}), model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    said = [{"role": "user", "content": "Say 0."}]
    whole = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert found.row(0, 10_000)[: found.num_given[0]].tolist() == whole
    assert (found.row(1, 10_000) == tokenizer.eos_token_id).sum() == 1


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "got chat, and the base model's tokenizer has no such template; use dolly"),
        ("{{ raise_exception('no') }}", "cannot be used"),
        ("always the same", "does not put what a user says before what is answered"),
    ],
)
def test_a_chat_template_that_cannot_be_used_is_refused(tiny_qwen2, template, says):
    model = tiny_qwen2 if template is None else with_chat_template(tiny_qwen2, template, Path("chat"))
    with pytest.raises(DataError, match=says):
        sliced(asked(dataset={"template": "chat"}), model)


def test_a_file_with_a_byte_order_mark_is_the_template_without_it():
    Path("mine.txt").write_text("{instruction}\n", encoding="utf-8-sig")
    assert read_template("path:mine.txt") == "{instruction}\n"


def test_a_chat_template_that_shows_the_day_shows_the_same_every_day(tiny_qwen2):
    template = "{{ strftime_now('%d %b %Y') }}: {{ messages[0].content }} A:"
    assert _ask_chat_template(with_chat_template(tiny_qwen2, template, Path("chat"))) == ("26 Jul 2024: ", " A:")


def test_braces_in_a_text_stay_what_they_are():
    filled = fill_template("{instruction}|{context}\n", instruction="{context} {x}", context="{instruction}")
    assert filled == "{context} {x}|{instruction}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Q: {question}\n", r"has \{question\}; allowed: \{instruction\} and \{context\}"),
        ("{instruction} {response}\n", r"has \{response\}; .* the response follows the prompt"),
        ("{instruction}{instruction}\n", r"needs \{instruction\} once"),
        ("{instruction}\nA: ", "ends in a space"),
        (None, "no text file"),
    ],
)
def test_a_file_that_is_no_template_is_refused_in_one_line(text, says):
    if text is not None:
        Path("mine.txt").write_text(text)
    with pytest.raises(ValueError, match=says):
        read_template("path:mine.txt")


def test_samples_are_of_prompts_that_are_read_at_a_glance():
    assert select_rows(np.full(5, 9), np.array([500, 40, 300, 100, 8])) == [(1, 40), (3, 100), (4, 8)]
    assert select_rows(np.full(3, 9), np.array([500, 40, 300])) == [(1, 40), (2, 300), (0, 500)]
