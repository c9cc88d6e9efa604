"""What the stage `upload` stages, and what it refuses; publishing is in tests/integration/test_hub_upload.py."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks import upload
from tasks.params import load_params
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.run import PublicationManifest
from tasks.reporting.document import render_model_card, render_report
from tasks.reporting.results import read_results, write_results
from tests.finished_comparison import make_finished_comparison, make_results, read_json, write_receipt
from training.model.weights import compute_parameter_checksum
from training.process.files import digest_file, write_json

FIRST = "data/runs/2proc/segments/0-8-epoch-1/tiny_qwen2_0-8-epoch-1.pt"
FINAL = "data/runs/2proc/segments/8-16-epoch-1/tiny_qwen2_8-16-epoch-1.pt"
ARGUMENTS = [
    "--base-model=data/base_model",
    "--runs=data/runs",
    "--reports=reports",
    "--staged=reports/hub",
    "--receipt=data/upload.json",
]
CANARY = "hf_canaryCanaryCanaryCanaryCanary99"


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_finished_comparison(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run_stage(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["upload", *ARGUMENTS, *more])
        upload._main()
        return capsys.readouterr().out

    return run


def sources() -> upload.Sources:
    return upload.Sources(base_model=Path("data/base_model"), runs=Path("data/runs"), reports=Path("reports"))


def stage() -> PublicationManifest:
    return upload.stage_publication(load_params(), sources(), Path("reports/hub"))


def ask_for(comparison: Path, checkpoints: str) -> None:
    """Set upload.checkpoints in params.yaml."""
    file = comparison / "params.yaml"
    file.write_text(file.read_text().replace("repo_id: null", f"repo_id: null, checkpoints: {checkpoints}"))


def test_staged_model_loads_and_equals_the_last_cells_final_checkpoint(comparison: Path, run_stage) -> None:
    said = run_stage()
    assert "nothing published; 11 files" in said
    assert "staged in reports/hub" in said
    staged = comparison / "reports/hub"
    model = AutoModelForCausalLM.from_pretrained(staged)
    wanted = torch.load(comparison / FINAL, weights_only=True)
    found = model.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.use_cache
    assert AutoTokenizer.from_pretrained(staged).encode("a b") == [1, 2]
    assert read_json(comparison / "data/upload.json")["status"] == "staged"


def test_every_staged_file_is_in_the_manifest_with_its_size_and_hash(comparison: Path, run_stage) -> None:
    run_stage()
    staged = comparison / "reports/hub"
    files = {str(file.relative_to(staged)): file for file in staged.rglob("*") if file.is_file()}
    manifest = read_json(staged / "manifest.json")
    assert set(manifest["files"]) == set(files) - {"manifest.json"}
    assert {
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "checkpoints/tiny_qwen2_8-16-epoch-1.pt",
        "report/index.html",
        "report/report.md",
        "report/results.json",
    } <= set(files)
    for path, facts in manifest["files"].items():
        assert facts == {"sha256": digest_file(files[path]), "num_bytes": files[path].stat().st_size}
    assert os.path.samefile(comparison / FINAL, files["checkpoints/tiny_qwen2_8-16-epoch-1.pt"])


def test_dry_run_lists_files_and_sizes_and_leaves_nothing(comparison: Path, run_stage) -> None:
    said = run_stage("--dry-run")
    size = (comparison / FINAL).stat().st_size
    assert f"{size:,}  checkpoints/tiny_qwen2_8-16-epoch-1.pt" in said
    assert "dry run: 11 files" in said
    assert sorted(path.name for path in (comparison / "reports").iterdir()) == [
        "charts",
        "index.html",
        "report.md",
        "results.json",
    ]
    assert not (comparison / "data/upload.json").exists()


def test_every_epoch_is_staged_as_its_branch_will_be_and_loads(comparison: Path, run_stage) -> None:
    file = comparison / "params.yaml"
    file.write_text(file.read_text().replace("repo_id: null", "repo_id: null, revisions: per_epoch"))
    assert "staged in reports/hub, and 2 revisions" in run_stage()
    assert not [path for path in read_json(comparison / "reports/hub/manifest.json")["files"] if "revisions" in path]
    for branch, checkpoint in (("0-8-epoch-1", FIRST), ("8-16-epoch-1", FINAL)):
        staged = comparison / "reports/hub/revisions" / branch
        found = AutoModelForCausalLM.from_pretrained(staged).state_dict()
        wanted = torch.load(comparison / checkpoint, weights_only=True)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        rows = branch.removesuffix("-epoch-1")
        assert f"after epoch 1 of 1 on rows {rows}" in (staged / "README.md").read_text()
    receipt = read_json(comparison / "data/upload.json")
    assert receipt["revisions"] == {"0-8-epoch-1": None, "8-16-epoch-1": None}
    assert "dry run: 11 files" in (said := run_stage("--dry-run"))
    assert "would be its branch 8-16-epoch-1" in said


def test_the_cell_that_is_named_is_published_and_one_that_is_not_there_is_refused(comparison: Path) -> None:
    params = load_params()
    named = params.model_copy(update={"upload": params.upload.model_copy(update={"cell": "1proc"})})
    assert upload.select_published_cell(named, Path("data/runs")) == "1proc"
    file = comparison / "params.yaml"
    file.write_text(file.read_text().replace("repo_id: null", "repo_id: null, cell: 3proc"))
    with pytest.raises(ConfigurationError, match=r"upload\.cell: got '3proc'.*allowed: 1proc, 2proc"):
        load_params()


def test_the_last_trained_cell_of_params_is_published(comparison: Path) -> None:
    params = load_params()
    assert upload.select_published_cell(params, Path("data/runs")) == "2proc"
    (comparison / "data/runs/2proc/run.json").unlink()
    assert upload.select_published_cell(params, Path("data/runs")) == "1proc"
    (comparison / "data/runs/1proc/run.json").unlink()
    with pytest.raises(DataError, match="no finished run of the cells 1proc, 2proc"):
        upload.select_published_cell(params, Path("data/runs"))


def test_a_checkpoint_that_is_not_what_its_receipt_says_is_refused(comparison: Path) -> None:
    ask_for(comparison, "[tiny_qwen2_0-8-epoch-1.pt]")
    with (comparison / FIRST).open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match=r"checkpoints/tiny_qwen2_0-8-epoch-1\.pt: sha256 .* is not .* of its receipt"):
        stage()


def test_weights_of_a_training_that_the_report_is_not_of_are_refused(comparison: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained("data/base_model")
    model.load_state_dict(torch.load(comparison / FINAL, weights_only=True))
    results = make_results()
    reported = results.cells[1].model_copy(update={"final_parameter_checksum": compute_parameter_checksum(model)})
    results = results.model_copy(update={"cells": [results.cells[0], reported]})
    write_results(comparison / "reports/results.json", results)
    stage()
    # Trained again, with another rate: all that its receipts say is true.
    weights = torch.load(comparison / FINAL, weights_only=True)
    next(iter(weights.values())).mul_(1.5)
    torch.save(weights, comparison / FINAL)
    write_receipt((comparison / FINAL).parent, [Path(FINAL).name, "state.pt"])
    with pytest.raises(DataError, match=r"are not those that the report is of .*: 2proc was trained again since; run"):
        stage()
    receipt = (comparison / FINAL).parent / "receipt.json"
    whole = receipt.read_text()
    receipt.write_text(whole.replace('"fingerprint": "0"', '"fingerprint": "1"'))
    assert receipt.read_text() != whole
    with pytest.raises(DataError, match=r"receipt.json: "):
        stage()
    receipt.write_text(whole)
    # Trained further: the last checkpoint is another one than the report's.
    earlier = reported.model_copy(update={"final_checkpoint": "segments/0-8-epoch-1/tiny_qwen2_0-8-epoch-1.pt"})
    write_results(
        comparison / "reports/results.json", results.model_copy(update={"cells": [results.cells[0], earlier]})
    )
    with pytest.raises(
        DataError, match=r"the report is of segments/0-8-epoch-1/.*: 2proc was trained again since; run"
    ):
        stage()


def test_the_final_weights_are_those_of_the_receipt_also_where_their_checkpoint_is_not_published(
    comparison: Path,
) -> None:
    ask_for(comparison, "[tiny_qwen2_0-8-epoch-1.pt]")
    weights = torch.load(comparison / FINAL, weights_only=True)
    torch.save({name: tensor + 1 for name, tensor in weights.items()}, comparison / FINAL)  # loads, but is another
    with pytest.raises(DataError, match=r"tiny_qwen2_8-16-epoch-1\.pt: sha256 .* is not .* of its receipt"):
        stage()


@pytest.mark.parametrize(
    ("asked", "parts"),
    [("last", ["8-16"]), ("all", ["0-8", "8-16"]), ("[tiny_qwen2_0-8-epoch-1.pt]", ["0-8"]), ("[]", [])],
)
def test_the_checkpoints_asked_for_are_staged_and_named_on_the_card(
    comparison: Path, asked: str, parts: list[str]
) -> None:
    ask_for(comparison, asked)
    manifest = stage()
    names = [f"checkpoints/tiny_qwen2_{part}-epoch-1.pt" for part in parts]
    assert [path for path in manifest.files if path.startswith("checkpoints/")] == names
    staged = comparison / "reports/hub"
    assert sorted(str(file.relative_to(staged)) for file in staged.glob("checkpoints/*")) == names
    card = (staged / "README.md").read_text(encoding="utf-8")
    assert [line.split()[1] for line in card.splitlines() if line.startswith("| checkpoints/")] == names
    model = AutoModelForCausalLM.from_pretrained(staged)
    wanted = torch.load(comparison / FINAL, weights_only=True)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


def test_a_checkpoint_that_was_asked_for_and_is_gone_is_named(comparison: Path) -> None:
    ask_for(comparison, "all")
    (comparison / FIRST).unlink()
    with pytest.raises(DataError, match=r"no checkpoint tiny_qwen2_0-8-epoch-1\.pt of upload\.checkpoints"):
        stage()


def test_card_names_data_gates_verdict_and_evaluation_in_its_metadata(comparison: Path) -> None:
    stage()
    metadata, body = read_card()
    result = metadata["model-index"][0]["results"][0]
    assert metadata["library_name"] == "transformers"
    assert "base_model" not in metadata  # the built-in model has no id on the Hub
    assert result["dataset"]["name"] == "docstrings of the installed packages, held-out rows 16-20"
    perplexity = pytest.approx(math.exp(3.25))
    assert {found["type"]: found["value"] for found in result["metrics"]} == {"loss": 3.25, "perplexity": perplexity}
    assert "| Equal tokens | ✓ passed | ✓ passed |" in body
    assert "- **Equal tokens**: 1proc: 63 tokens" in body
    assert "| 2proc | 2 | 6.40 s | 9.84 | 2.50 | 0.3 % |" in body
    assert "**Model**: tiny Qwen2 with random weights; qwen2, 1,000 parameters" in body


def test_every_file_that_the_published_page_names_is_published(comparison: Path) -> None:
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


@pytest.mark.parametrize("name", ["resnet18", "vit-b-16"])
def test_the_card_of_a_network_for_images_says_how_it_is_really_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    from tasks.data.sources import image_models

    small = {"patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    monkeypatch.setitem(image_models.CONFIGS, "vit-b-16", {**image_models.CONFIGS["vit-b-16"], **small})
    image_models.write_image_network(tmp_path, name, ["a", "b"], image_size=16)
    results = make_results()
    model = results.comparison.model.model_copy(update={"model_type": image_models.CONFIGS[name]["model_type"]})
    comparison = results.comparison.model_copy(
        update={"unit": "image", "model": model, "train": {**results.comparison.train, "augment": "flip"}}
    )
    card = render_model_card(
        results.model_copy(update={"comparison": comparison}), cell="2proc", repo_id="me/mine", checkpoints=[]
    )
    code = card.split("```python\n", 1)[1].split("```", 1)[0]
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo_id, file: str(tmp_path / file))
    loaded: dict[str, Any] = {}
    exec(code, loaded)
    wanted = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, wanted[key]) for key, value in loaded["model"].state_dict().items())
    assert "for torchvision" in card
    assert "from_pretrained" not in card


def test_all_checkpoints_are_those_of_the_cell_which_may_have_more_epochs_than_others(comparison: Path) -> None:
    ask_for(comparison, "all")
    run, old, new = comparison / "data/runs/2proc", "8-16-epoch-1", "8-16-epoch-2"
    folder = (run / "segments" / old).rename(run / "segments" / new)
    (folder / f"tiny_qwen2_{old}.pt").rename(folder / f"tiny_qwen2_{new}.pt")
    write_receipt(folder, [f"tiny_qwen2_{new}.pt", "state.pt"])
    facts = read_json(run / "run.json")
    facts["segments"][-1] |= {"epoch": 2, "folder": f"segments/{new}"}
    write_json(run / "run.json", facts | {"final_checkpoint": facts["final_checkpoint"].replace(old, new)})
    # A report of that training.
    content = (comparison / "reports/results.json").read_text()
    (comparison / "reports/results.json").write_text(content.replace(old, new))
    manifest = stage()
    assert [path for path in manifest.files if path.startswith("checkpoints/")] == [
        "checkpoints/tiny_qwen2_0-8-epoch-1.pt", f"checkpoints/tiny_qwen2_{new}.pt",
    ]  # fmt: skip


def read_card() -> tuple[dict[str, Any], str]:
    """Return the metadata of the staged card, and what stands below them."""
    _, head, body = Path("reports/hub/README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), body


@pytest.mark.parametrize("has_license", [True, False])
def test_the_card_of_hub_sources_names_them_their_licences_and_where_its_figures_are(
    comparison: Path, has_license: bool
) -> None:
    content = read_json(comparison / "reports/results.json")
    model, dataset = content["comparison"]["model"], content["comparison"]["dataset"]
    model |= {"source": "hub:owner/base", "commit": "c" * 40, "is_random_weights": False}
    dataset |= {"source": "hub:owner/rows", "commit": "d" * 40, "languages": ["en"]}
    if has_license:
        model["license"], dataset["license"] = "apache-2.0", "cc0-1.0"
    write_json(comparison / "reports/results.json", content)
    text = (comparison / "params.yaml").read_text().replace("repo_id: null", "repo_id: me/mine")
    (comparison / "params.yaml").write_text(text)
    stage()
    metadata, body = read_card()
    names = ("base_model", "base_model_relation", "datasets", "language", "metrics")
    assert [metadata[name] for name in names] == [
        "owner/base", "finetune", ["owner/rows"], ["en"], ["loss", "perplexity"]
    ]  # fmt: skip
    assert metadata.get("license") == ("apache-2.0" if has_license else None)
    (result,) = metadata["model-index"][0]["results"]
    assert (result["dataset"]["split"], result["dataset"]["revision"]) == ("train", "d" * 40)
    assert result["source"]["url"].endswith("/me/mine/blob/main/report/results.json")
    for commit, license_name in (("c" * 40, "apache-2.0"), ("d" * 40, "cc0-1.0")):
        assert f"commit {commit}" in body
        assert (license_name in body) is has_license


def test_a_token_on_the_command_line_is_refused_without_repeating_it(
    run_stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="HF_TOKEN") as refused:
        run_stage("--token", CANARY)
    told = capsys.readouterr()
    assert CANARY not in f"{told}{refused.value}"


@pytest.mark.parametrize(
    ("heldout_source", "wanted"), [("split:test", ("test", "d" * 40)), ("path:test.jsonl", (None, None))]
)
def test_card_names_the_split_that_the_held_out_rows_are_of(
    comparison: Path, heldout_source: str, wanted: tuple[str | None, str | None]
) -> None:
    content = read_json(comparison / "reports/results.json")
    content["comparison"]["dataset"] |= {"source": "hub:owner/rows", "commit": "d" * 40}
    write_json(comparison / "reports/results.json", content)
    params = load_params()
    dataset = params.dataset.model_copy(update={"heldout_source": heldout_source})
    upload.stage_publication(params.model_copy(update={"dataset": dataset}), sources(), comparison / "reports/hub")
    evaluated = read_card()[0]["model-index"][0]["results"][0]["dataset"]
    assert (evaluated.get("split"), evaluated.get("revision")) == wanted


def test_card_without_speedup_where_it_is_withheld() -> None:
    card = render_model_card(make_results(is_withheld=True), cell="2proc", repo_id=None, checkpoints=[])
    assert "| Equal tokens | ✓ passed | ✗ failed |" in card
    assert "- **Equal tokens**: 2proc 0-8 epoch 1: 31 tokens" in card
    assert "efficiency" not in card.lower()
    assert "## How much faster" not in card
    assert "seconds per epoch" not in card.lower()


def test_repo_without_token_ends_with_exit_code_2_in_one_line_before_anything_is_staged(comparison: Path) -> None:
    text = (comparison / "params.yaml").read_text(encoding="utf-8").replace("null", "owner/tiny")
    (comparison / "params.yaml").write_text(text, encoding="utf-8")
    environment = {**os.environ, "HF_TOKEN": "", "HF_HOME": str(comparison / "cache")}
    command = [sys.executable, "-X", "importtime", "-m", "tasks.upload", *ARGUMENTS]
    environment["PYTHONPATH"] = str(Path(upload.__file__).parents[1])
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("import time:")]
    assert ended.returncode == 2
    assert len(lines) == 1
    assert "owner/tiny, but there is no token; set HF_TOKEN or run `hf auth login`" in lines[0]
    assert not any(line.endswith((" torch", " transformers")) for line in ended.stderr.splitlines())
    assert not (comparison / "reports/hub").exists()
    assert not (comparison / "data/upload.json").exists()
