"""What the stage `upload` stages, and what it refuses; publishing is in tests/integration/test_hub_upload.py."""

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.growth.finished import seal_segment
from tasks import upload
from tasks.params import load_params
from tasks.process.failure import ConfigurationError, DataError
from tasks.reporting.document import render_model_card, render_report
from tasks.reporting.results import Results, read_results, write_results
from tests.finished_comparison import make_finished_comparison, make_results, read_json
from training.model.weights import compute_parameter_checksum
from training.process.files import digest_file, write_json

FIRST = "data/runs/2proc/segments/0-8-epoch-1/tiny_qwen2_0-8-epoch-1.pt"
FINAL = "data/runs/2proc/segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt"
ARGUMENTS = ["--base-model=data/base_model", "--runs=data/runs", "--reports=reports", "--staged=reports/hub"]
ARGUMENTS += ["--receipt=data/upload.json"]
CANARY = "hf_canaryCanaryCanaryCanaryCanary99"


@pytest.fixture
def comparison(tmp_path, monkeypatch):
    make_finished_comparison(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_stage(monkeypatch, capsys):
    def run(*more):
        monkeypatch.setattr(sys, "argv", ["upload", *ARGUMENTS, *more])
        upload._main()
        return capsys.readouterr().out

    return run


def stage():
    sources = upload.Sources(base_model=Path("data/base_model"), runs=Path("data/runs"), reports=Path("reports"))
    return upload.stage_publication(load_params(), sources, Path("reports/hub"))


def require_refused(says):
    with pytest.raises(DataError, match=says):
        stage()


def ask_for(comparison, checkpoints):
    """Set upload.checkpoints in params.yaml."""
    file = comparison / "params.yaml"
    file.write_text(file.read_text().replace("repo_id: null", f"repo_id: null, checkpoints: {checkpoints}"))


def test_dry_run_lists_files_and_sizes_and_leaves_nothing(comparison, run_stage):
    said = run_stage("--dry-run")
    size = (comparison / FINAL).stat().st_size
    assert f"{size:,}  checkpoints/tiny_qwen2_8-16-epoch-1.pt" in said
    assert "dry run: 11 files" in said
    left = {path.name for path in (comparison / "reports").iterdir()}
    assert left == {"charts", "index.html", "report.md", "results.json"}
    assert not (comparison / "data/upload.json").exists()


def test_the_last_trained_cell_of_params_is_published(comparison):
    params, runs = load_params(), Path("data/runs")
    for cell in ("2proc", "1proc"):
        assert upload.select_published_cell(params, runs) == cell
        (runs / cell / "run.json").unlink()
    with pytest.raises(DataError, match="no finished run of the cells 1proc, 2proc"):
        upload.select_published_cell(params, runs)


def test_a_checkpoint_that_is_not_what_its_receipt_says_is_refused(comparison):
    ask_for(comparison, "[tiny_qwen2_0-8-epoch-1.pt]")
    with (comparison / FIRST).open("ab") as file:
        file.write(b"x")
    require_refused(r"checkpoints/tiny_qwen2_0-8-epoch-1\.pt: sha256 .* is not .* of its receipt")


def test_weights_of_a_training_that_the_report_is_not_of_are_refused(comparison):
    final, weights = Path(FINAL), torch.load(FINAL, weights_only=True)
    model = AutoModelForCausalLM.from_pretrained("data/base_model")
    model.load_state_dict(weights)
    found = make_results()

    def report(**changes):
        told = {"final_parameter_checksum": checksum} | changes
        cells = [found.cells[0], found.cells[1].model_copy(update=told)]
        write_results(Path("reports/results.json"), found.model_copy(update={"cells": cells}))

    checksum = compute_parameter_checksum(model)
    report()
    stage()
    # Trained again, with another rate: all that its receipts say is true.
    next(iter(weights.values())).mul_(1.5)
    torch.save(weights, final)
    seal_segment(final.parent)
    require_refused(r"are not those that the report is of .*: 2proc was trained again since; run")
    # Trained further: the last checkpoint is another one than the report's.
    report(final_checkpoint="segments/0-8-epoch-1/tiny_qwen2_0-8-epoch-1.pt")
    require_refused(r"the report is of segments/0-8-epoch-1/.*: 2proc was trained again since; run")


def test_the_final_weights_are_those_of_the_receipt_also_where_their_checkpoint_is_not_published(comparison):
    ask_for(comparison, "[tiny_qwen2_0-8-epoch-1.pt]")
    weights = torch.load(comparison / FINAL, weights_only=True)
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, comparison / FINAL)  # loads, but is another
    require_refused(r"tiny_qwen2_8-16-epoch-1\.pt: sha256 .* is not .* of its receipt")


@pytest.mark.parametrize(
    ("asked", "parts"),
    [("last", ["8-16"]), ("all", ["0-8", "8-16"]), ("[tiny_qwen2_0-8-epoch-1.pt]", ["0-8"]), ("[]", [])],
)
def test_the_checkpoints_asked_for_are_staged_and_named_on_the_card(comparison, asked, parts):
    ask_for(comparison, asked)
    manifest = stage()
    names = [f"checkpoints/tiny_qwen2_{part}-epoch-1.pt" for part in parts]
    assert [path for path in manifest.files if path.startswith("checkpoints/")] == names
    staged = comparison / "reports/hub"
    files = {str(file.relative_to(staged)) for file in staged.rglob("*") if file.is_file()}
    assert files - {"manifest.json"} == set(manifest.files) > {"tokenizer.json", "report/index.html", *names}
    assert all(facts.sha256 == digest_file(staged / path) for path, facts in manifest.files.items())
    run = comparison / "data/runs/2proc"
    assert all((staged / name).samefile(next(run.rglob(Path(name).name))) for name in names)
    card = (staged / "README.md").read_text(encoding="utf-8")
    assert [line.split()[1] for line in card.splitlines() if line.startswith("| checkpoints/")] == names
    model = AutoModelForCausalLM.from_pretrained(staged)
    wanted = torch.load(comparison / FINAL, weights_only=True)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


def test_a_checkpoint_that_was_asked_for_and_is_gone_is_named(comparison):
    ask_for(comparison, "all")
    (comparison / FIRST).unlink()
    require_refused(r"no checkpoint tiny_qwen2_0-8-epoch-1\.pt of upload\.checkpoints")


def test_every_file_that_the_published_page_names_is_published(comparison):
    reports = comparison / "reports"
    names = ["epochs.csv", "losses.csv", "blocks.parquet", "timelines/2proc.json.gz"]
    (reports / "timelines").mkdir()
    for name in names:
        (reports / name).write_bytes(name.encode())
    stage()
    published = reports / "hub/report"
    assert [(published / name).read_bytes().decode() for name in names] == names
    text = render_report("markdown", read_results(reports / "results.json"))
    # Of the charts those go with it that there are.
    linked = set(re.findall(r"^- \[[^]]*\]\((?!charts/.)([^)]*)\)", text, re.MULTILINE))
    assert len(linked) > 4
    assert all((published / href).exists() for href in linked), linked


def test_the_card_of_a_network_for_images_says_how_it_is_really_loaded(tmp_path, monkeypatch):
    import huggingface_hub

    from tasks.data.sources import image_models

    image_models.write_image_network(tmp_path, "resnet18", ["a", "b"], image_size=16)
    content = make_results().model_dump(mode="json")
    content["comparison"] |= {"unit": "image", "train": content["comparison"]["train"] | {"augment": "flip"}}
    content["comparison"]["model"]["model_type"] = "resnet18"
    card = render_model_card(Results.model_validate(content), cell="2proc", repo_id="me/mine", checkpoints=[])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo_id, file: str(tmp_path / file))
    loaded = {}
    exec(card.split("```python\n", 1)[1].split("```", 1)[0], loaded)
    wanted = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, wanted[key]) for key, value in loaded["model"].state_dict().items())
    assert "from_pretrained" not in card


def read_card():
    """Return the metadata of the staged card, and what stands below them."""
    _, head, body = Path("reports/hub/README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), body


@pytest.mark.parametrize("license_name", ["apache-2.0", None])
def test_the_card_of_hub_sources_names_them_their_licences_and_where_its_figures_are(comparison, license_name):
    content = read_json(comparison / "reports/results.json")
    model, dataset = content["comparison"]["model"], content["comparison"]["dataset"]
    model |= {"source": "hub:owner/base", "commit": "c" * 40, "is_random_weights": False, "license": license_name}
    dataset |= {"source": "hub:owner/rows", "commit": "d" * 40, "languages": ["en"]}
    write_json(comparison / "reports/results.json", content)
    text = (comparison / "params.yaml").read_text().replace("repo_id: null", "repo_id: me/mine")
    (comparison / "params.yaml").write_text(text)
    stage()
    metadata, body = read_card()
    names = ("base_model", "base_model_relation", "datasets", "language", "license")
    assert [metadata.get(name) for name in names] == ["owner/base", "finetune", ["owner/rows"], ["en"], license_name]
    (result,) = metadata["model-index"][0]["results"]
    assert (result["dataset"]["split"], result["dataset"]["revision"]) == ("train", "d" * 40)
    assert result["source"]["url"].endswith("/me/mine/blob/main/report/results.json")
    assert all(f"commit {letter * 40}" in body for letter in "cd")
    assert ("apache-2.0" in body) is (license_name is not None)


def test_a_token_on_the_command_line_is_refused_without_repeating_it(run_stage, capsys):
    with pytest.raises(ConfigurationError, match="HF_TOKEN") as refused:
        run_stage("--token", CANARY)
    told = capsys.readouterr()
    assert CANARY not in f"{told}{refused.value}"
