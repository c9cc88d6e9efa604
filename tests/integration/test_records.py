"""Every JSON file that passes between stages is what its class in tasks/records/ says, no more and no less."""

import dataclasses
import json

import pytest

from tasks.records.certificate import CertificateFile, CertifiedFile
from tasks.records.evaluation import EvaluationFile
from tasks.records.fingerprint import InputsFile, MachineFile, SourcesFile, TrialFile
from tasks.records.measurement import MeasurementFile
from tasks.records.publication import PublicationManifest, UploadFile
from tasks.records.run import RunFile, read_segment
from tasks.records.slices import SliceManifest, SlicesManifest
from tasks.records.sources import BaseModelManifest, RawManifest
from tasks.records.stage_file import StageFile
from tasks.records.twins import Twins
from tests.workspace import Workspace

_CLASSES: dict[str, type[StageFile]] = {
    "data/fingerprint/machine.json": MachineFile,
    "data/fingerprint/sources.json": SourcesFile,
    "data/fingerprint/stages/*.json": InputsFile,
    "data/fingerprint/trial.json": TrialFile,
    "data/raw/*.json": RawManifest,
    "data/base_model/manifest.json": BaseModelManifest,
    "data/slices/*.json": SlicesManifest,
    "data/slices/*/*.json": SliceManifest,
    "data/measurements/certificate.json": CertificateFile,
    "data/measurements/speed.json": MeasurementFile,
    "data/measurements/twins.json": Twins,
    "data/runs/*/*.json": RunFile,
    "data/evaluation/*.json": EvaluationFile,
    "data/upload.json": UploadFile,
    "reports/hub/manifest.json": PublicationManifest,
    ".work/measure/*/certificate.json": CertifiedFile,
}


@pytest.mark.slow
def test_a_class_writes_what_it_reads_of_every_file_between_stages(workspace: Workspace) -> None:
    for pattern, kind in _CLASSES.items():
        files = sorted(workspace.folder.glob(pattern))
        if not files and kind not in (MeasurementFile, Twins):  # which the small comparison may leave out
            pytest.fail(f"no file {pattern}")
        for file in files:
            written = json.loads(file.read_bytes())
            assert kind.read(file).model_dump(mode="json") == written, file
    segments = sorted(workspace.folder.glob("data/runs/*/segments/*"))
    assert segments
    for folder in segments:
        assert dataclasses.asdict(read_segment(folder)) == json.loads((folder / "segment.json").read_bytes())


@pytest.mark.slow
def test_every_file_names_the_rows_that_it_is_of(workspace: Workspace) -> None:
    data = workspace.folder / "data"
    rows = {file.parent.name: SliceManifest.read(file.parent).digest for file in data.glob("slices/*/manifest.json")}
    for file in data.glob("runs/*/run.json"):
        for entry in RunFile.read(file.parent).segments:
            assert entry.rows_digest == rows[entry.range]
    evaluation = EvaluationFile.read(data / "evaluation")
    of_epochs = [one for epochs in evaluation.epochs.values() for one in epochs]
    found = {one.rows_digest for one in (*evaluation.models.values(), *of_epochs)}
    assert len(found) == 1
    assert found <= set(rows.values())
    for measurement in filter(None, [MeasurementFile.read_if_there(data / "measurements")]):
        assert measurement.rows_digests
        assert measurement.rows_digests.items() <= rows.items()
    for twins in filter(None, [Twins.read_if_there(data / "measurements")]):
        ranges = {entry.range for entry in RunFile.read(data / "runs/1proc").segments}
        assert {name: digest for name, digest in twins.made_of.items() if name.startswith("rows ")} == {
            f"rows {part}": rows[part] for part in ranges
        }
        assert {
            "numerics_version",
            "base_model_digest",
            "machine_digest",
            "train.learning_rate",
        } <= twins.made_of.keys()


@pytest.mark.slow
def test_no_file_between_stages_is_without_a_class(workspace: Workspace) -> None:
    """DVC reads optional.json as params; the model's own files and receipts are no records of the stages."""
    known = {file for pattern in _CLASSES for file in workspace.folder.glob(pattern)}
    found = {file for file in (workspace.folder / "data").rglob("*.json") if file.parent.name != "base_model"}
    others = {file.name for file in found - known}
    assert others <= {"optional.json", "segment.json", "receipt.json"}
