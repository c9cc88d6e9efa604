"""Every JSON file that passes between stages is what its class in tasks/records/ says, no more and no less."""

import dataclasses
import json

import pytest

from tasks.records.evaluation import EvaluationFile
from tasks.records.manifests import (
    BaseModelManifest,
    InputsFile,
    MachineFile,
    RawManifest,
    SliceManifest,
    SlicesManifest,
    SourcesFile,
    TrialFile,
)
from tasks.records.measurement import MeasurementFile
from tasks.records.run import PublicationManifest, RunFile, UploadFile, read_segment

_CLASSES = {
    "data/fingerprint/machine.json": MachineFile,
    "data/fingerprint/sources.json": SourcesFile,
    "data/fingerprint/stages/*.json": InputsFile,
    "data/fingerprint/trial.json": TrialFile,
    "data/raw/*.json": RawManifest,
    "data/base_model/manifest.json": BaseModelManifest,
    "data/slices/*.json": SlicesManifest,
    "data/slices/*/*.json": SliceManifest,
    "data/measurements/speed.json": MeasurementFile,
    "data/runs/*/*.json": RunFile,
    "data/evaluation/*.json": EvaluationFile,
    "data/upload.json": UploadFile,
    "reports/hub/manifest.json": PublicationManifest,
}


@pytest.mark.slow
def test_a_class_writes_what_it_reads_of_every_file_between_stages(workspace):
    for pattern, kind in _CLASSES.items():
        files = sorted(workspace.folder.glob(pattern))
        if not files and kind is not MeasurementFile:  # which the small comparison may leave out
            pytest.fail(f"no file {pattern}")
        for file in files:
            written = json.loads(file.read_bytes())
            assert kind.read(file).model_dump(mode="json") == written, file
    segments = sorted(workspace.folder.glob("data/runs/*/segments/*"))
    assert segments
    for folder in segments:
        assert dataclasses.asdict(read_segment(folder)) == json.loads((folder / "segment.json").read_bytes())


@pytest.mark.slow
def test_a_right_comparison_passes_by_the_work_of_its_blocks_and_its_trained_updates(finished):
    results = json.loads((finished.folder / "reports" / "results.json").read_bytes())
    findings = {gate["name"]: gate["findings"] for gate in results["gates"]}
    for name in ("Timed blocks did the work", "Update equivalence", "Gradients were synchronised"):
        assert [one["outcome"] for one in findings[name] if one["cell"] == "2proc"] == ["passed"], findings[name]
