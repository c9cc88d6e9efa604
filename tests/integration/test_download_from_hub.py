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

pytestmark = pytest.mark.slow

ROWS_PER_FILE = 1_500
MODULES = [
    "torch", "transformers", "transformers.models.auto.modeling_auto", "transformers.models.qwen2.modeling_qwen2",
    "safetensors.torch", "datasets",
]  # fmt: skip
REFUSED_TEXT = "hf_canaryCanaryCanaryCanaryCanary05"


class Downloader:
    """A project folder, a Hub, and runs of the stage in processes of their own."""

    def __init__(self, folder, hub, project):
        self.folder = folder
        self.hub = hub
        self.params = load_params(project / "presets" / "embedded.yaml").model_dump(mode="json")

    def run(self, *ranges, heldout="300-400", **dataset):
        """Run the stage once and return what it said."""
        params = {**self.params, "ranges": ranges or ["0-300"], "heldout": heldout}
        params["model"] = {"source": "hub:owner/tiny", "revision": "main", "name": "tiny"}
        params["dataset"] = {"source": "hub:owner/texts", "revision": "main", **dataset}
        (self.folder / "params.yaml").write_text(json.dumps(params))  # JSON is YAML
        (self.folder / "sources.json").write_text('{"model": null, "dataset": null}')
        self.hub.requests.clear()
        command = ["-m", "tasks.download", "--sources=sources.json", "--raw=raw", "--base-model=model"]
        ended = self.hub.run(self.folder, command, token=REFUSED_TEXT)
        assert REFUSED_TEXT not in ended.stderr
        assert "Traceback" not in ended.stderr
        assert self.hub.unknown == []
        return ended

    @property
    def texts(self):
        return pq.read_table(self.folder / "raw/rows.parquet").column("text").to_pylist()

    def manifest(self, of):
        return json.loads((self.folder / of / "manifest.json").read_text())


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


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_qwen2(folder, [f"{text(number)} {number:x} {number:o} {number:b}" for number in range(3_000)])
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    return folder


@pytest.fixture
def downloader(tmp_path, project, model, monkeypatch):
    """Its processes start at once: libraries look where the Hub is when they are imported."""
    with HubServer(tokens=(REFUSED_TEXT,)) as hub:
        given = {**hub.environment(cache=tmp_path / "cache"), "PYTHONPATH": str(project)}
        with warm_environment(given, modules=MODULES) as programs:
            monkeypatch.setattr(sys, "executable", str(programs / "python"))
            hub.add_repo("dataset", "owner/texts", write_texts(tmp_path / "source"))
            hub.add_repo("model", "owner/tiny", model)
            yield Downloader(tmp_path, hub, project)


def test_rows_and_model_arrive_at_a_commit_that_stays_until_the_user_asks_anew(downloader, tmp_path, model):
    repo = downloader.hub.repos["dataset", "owner/texts"]
    first_commit = repo.head
    # Errors for a while delay the download and change nothing.
    downloader.hub.fail("500", r"GET .*train-00000.*\.parquet", times=2)
    ended = downloader.run()
    assert ended.returncode == 0, ended.stderr
    assert [fault.times for fault in downloader.hub.faults] == [0]
    assert downloader.texts == [text(number) for number in range(400)]
    assert downloader.hub.count("train-0000[12]-of-00003.parquet") == 0  # only what is needed
    facts = downloader.manifest("raw")
    assert [facts[key] for key in ("source", "revision", "commit", "split", "num_rows", "license")] == [
        "hub:owner/texts", "main", first_commit, "train", 400, "cc0-1.0",
    ]  # fmt: skip
    facts = downloader.manifest("model")
    assert (facts["revision"], facts["commit"]) == ("main", downloader.hub.repos["model", "owner/tiny"].head)
    assert (facts["is_random_weights"], facts["license"]) == (False, "apache-2.0")
    assert (tmp_path / "model/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert not (tmp_path / "model/pytorch_model.bin").exists()

    for changes, said in (
        ({"config": "small"}, "dataset.config: got small; allowed: 'default'"),
        ({"split": "dev"}, "dataset.split: got 'dev'; Bad split: dev. Available splits: ['train', 'test']"),
    ):
        ended = downloader.run(**changes)
        assert ended.returncode == 2, ended.stderr
        assert said in ended.stderr.splitlines()[-1]
        assert len(downloader.texts) == 400

    shutil.rmtree(tmp_path / "raw")
    repo.add_folder(write_texts(tmp_path / "source", "second"))
    ended = downloader.run("0-300", f"400-{ROWS_PER_FILE + 100}")
    assert f"dataset:owner/texts@main: stays at commit {first_commit}" in ended.stderr
    assert downloader.texts == [text(number) for number in range(ROWS_PER_FILE + 100)]
    assert downloader.manifest("raw")["commit"] == first_commit

    (tmp_path / ".work/download/revisions.json").unlink()
    two = {"split": "train+test", "heldout": f"300-{3 * ROWS_PER_FILE + 1}"}
    assert downloader.run(**two).returncode == 0
    assert downloader.manifest("raw")["commit"] == repo.head != first_commit
    assert (downloader.texts[0], downloader.texts[-1]) == (text(0, "second"), "tested")
    shutil.rmtree(tmp_path / "raw")
    assert downloader.run(**two).returncode == 0
    assert downloader.hub.requests == []  # nothing is asked twice
