"""The download stage on a data set and a model from a Hub on loopback that speaks the real protocol."""

import json
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data.builtin.tiny_models import write_tiny_qwen2
from tasks.params import load_params
from tests.hub_server import HubServer
from tests.warm.environment import warm_environment

ROWS_PER_FILE = 1_500
MODULES = [
    "torch", "transformers", "transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2",
    "safetensors.torch", "datasets",
]  # fmt: skip
REFUSED_TEXT = "hf_canaryCanaryCanaryCanaryCanary05"


def text(number, edition="first"):
    return f"Text {number} of the {edition} edition, in its own words."


def write_texts(folder, edition="first"):
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for part in range(3):
        numbers = range(part * ROWS_PER_FILE, (part + 1) * ROWS_PER_FILE)
        table = pa.table({"id": numbers, "text": [text(number, edition) for number in numbers]})
        pq.write_table(table, folder / f"data/train-{part:05d}-of-00003.parquet")
    pq.write_table(pa.table({"id": [0], "text": ["tested"]}), folder / "data/test-00000-of-00001.parquet")
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Texts\n")
    return folder


@pytest.fixture
def hub(tmp_path, project, monkeypatch):
    """A Hub, and a stage that starts at once: libraries look where the Hub is when they are imported."""
    with HubServer(tokens=(REFUSED_TEXT,)) as hub:
        given = {**hub.environment(cache=tmp_path / "cache"), "PYTHONPATH": str(project)}
        with warm_environment(given, modules=MODULES) as programs:
            monkeypatch.setattr(sys, "executable", str(programs / "python"))
            yield hub
    assert hub.unknown == []


@pytest.mark.slow
def test_rows_and_model_arrive_at_a_commit_that_stays_until_the_user_asks_anew(hub, tmp_path, project):
    model = tmp_path / "tiny"
    model.mkdir()
    write_tiny_qwen2(model, [f"{text(number)} {number:x} {number:o} {number:b}" for number in range(3_000)])
    (model / "pytorch_model.bin").write_bytes(b"pickle")
    (model / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    commit_of_model = hub.add_repo("model", "owner/tiny", model).head
    repo = hub.add_repo("dataset", "owner/texts", write_texts(tmp_path / "source"))
    first_commit = repo.head

    def download(*ranges, heldout="300-400", **dataset):
        """Run the stage; return the texts, the manifest of the rows, and what it said."""
        params = load_params(project / "presets" / "embedded.yaml").model_dump(mode="json")
        params |= {"ranges": ranges or ["0-300"], "heldout": heldout}
        params["model"] = {"source": "hub:owner/tiny", "revision": "main", "name": "tiny"}
        params["dataset"] = {"source": "hub:owner/texts", "revision": "main", **dataset}
        (tmp_path / "params.yaml").write_text(json.dumps(params))  # JSON is YAML
        (tmp_path / "sources.json").write_text('{"model": null, "dataset": null}')
        hub.requests.clear()
        command = ["-m", "tasks.download", "--sources=sources.json", "--raw=raw", "--base-model=model"]
        ended = hub.run(tmp_path, command, token=REFUSED_TEXT)
        assert ended.returncode == 0, ended.stderr
        assert REFUSED_TEXT not in ended.stderr
        rows = pq.read_table(tmp_path / "raw/rows.parquet").column("text").to_pylist()
        return rows, json.loads((tmp_path / "raw/manifest.json").read_text()), ended.stderr

    # Errors for a while delay the download and change nothing.
    hub.fail("500", r"GET .*train-00000.*\.parquet", times=2)
    rows, facts, _ = download()
    assert [fault.times for fault in hub.faults] == [0]
    assert rows == [text(number) for number in range(400)]
    assert hub.count("train-0000[12]-of-00003.parquet") == 0  # only what is needed
    assert [facts[key] for key in ("source", "revision", "commit", "split", "num_rows", "license")] == [
        "hub:owner/texts", "main", first_commit, "train", 400, "cc0-1.0",
    ]  # fmt: skip
    facts = json.loads((tmp_path / "model/manifest.json").read_text())
    assert [facts[key] for key in ("revision", "commit", "is_random_weights", "license")] == [
        "main", commit_of_model, False, "apache-2.0",
    ]  # fmt: skip
    assert (tmp_path / "model/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert not (tmp_path / "model/pytorch_model.bin").exists()

    shutil.rmtree(tmp_path / "raw")
    repo.add_folder(write_texts(tmp_path / "source", "second"))
    rows, facts, said = download("0-300", f"400-{ROWS_PER_FILE + 100}")
    assert f"dataset:owner/texts@main: stays at commit {first_commit}" in said
    assert rows == [text(number) for number in range(ROWS_PER_FILE + 100)]
    assert facts["commit"] == first_commit

    (tmp_path / ".work/download/revisions.json").unlink()
    two = {"split": "train+test", "heldout": f"300-{3 * ROWS_PER_FILE + 1}"}
    rows, facts, _ = download(**two)
    assert facts["commit"] == repo.head != first_commit
    assert (rows[0], rows[-1]) == (text(0, "second"), "tested")
    shutil.rmtree(tmp_path / "raw")
    download(**two)
    assert hub.requests == []  # nothing is asked twice
