"""dvc.yaml, tasks/ and the lock hold together."""

import re
from pathlib import Path

import grimp
import pytest
from ruamel.yaml import YAML


@pytest.fixture(scope="module")
def stages(project):
    return YAML(typ="safe", pure=True).load(project / "dvc.yaml")["stages"]


def test_every_stage_but_the_first_works_on_its_snapshot_and_depends_on_it(stages):
    for name, stage in stages.items():
        if name == "fingerprint":
            continue
        stage = stage.get("do", stage)
        key = f"{name}@${{key}}" if name == "train" else name
        snapshot = f"data/fingerprint/stages/{key}.json"
        assert f" --inputs {snapshot}" in stage["cmd"], name
        assert snapshot in stage["deps"], name


@pytest.fixture(scope="module")
def imports(project):
    """Who imports whom in tasks/ and training/, also where a package is named and its module is found by name."""
    graph = grimp.build_graph("ddp_audit", "tasks", "training", exclude_type_checking_imports=True, cache_dir=None)
    for module in list(graph.modules):
        text = _locate(module, project).read_text()
        for package in re.findall(r"""["']((?:tasks|training)(?:\.\w+)+)["'.]""", text):
            children = graph.find_children(package) if package in graph.modules else set()
            # A stage takes of a strategy what it expects; its step is for ranks.
            children = {
                package,
                *children,
                *(f"{child}.{part}" for child in children for part in ("expected", "options")),
            }
            for found in children - {module}:
                if found in graph.modules and not package.endswith(".__main__"):
                    graph.add_import(importer=module, imported=found)
    # Ranks, which a stage starts.
    for stage in ("tasks.measure", "tasks.train"):
        graph.add_import(importer=stage, imported="training.__main__")
    return graph


def _locate(module, project):
    place = project / module.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@pytest.mark.parametrize("stage", ["download", "slice", "measure", "train", "evaluate", "report", "upload"])
def test_a_stage_depends_on_the_sources_that_it_imports_and_on_no_other_room(stage, stages, imports, project):
    deps = [Path(dep) for dep in stages[stage].get("do", stages[stage])["deps"]]
    deps = [dep for dep in deps if dep.parts[0] in ("ddp_audit", "tasks", "training")]
    modules = {f"tasks.{stage}", *imports.find_upstream_modules(f"tasks.{stage}")}
    files = {_locate(module, project).relative_to(project) for module in modules}
    assert len(files) > 50
    # The packages' own __init__.py is empty.
    missing = {
        file for file in files if not any(file.is_relative_to(dep) for dep in deps) and (project / file).read_text()
    }
    assert not missing, f"dvc.yaml: deps of {stage} lack {sorted(map(str, missing))}"
    idle = {dep for dep in deps if not any(file.is_relative_to(dep) for file in files)}
    assert not idle, f"dvc.yaml: {stage} imports nothing of {sorted(map(str, idle))}"


@pytest.mark.parametrize(
    ("name", "fewest"),
    [("requirements.lock", 200), ("requirements-cuda12.lock", 10), ("requirements-extras.lock", 10)],
)
def test_a_lock_pins_every_package_by_hash_and_names_no_host(project, name, fewest):
    lock = (project / name).read_text()
    packages = re.findall(r"^[A-Za-z0-9_.\-]+==", lock, flags=re.MULTILINE)
    assert len(packages) > fewest
    assert len(re.findall(r"==.*\\\n    --hash=sha256:", lock)) == len(packages)
    assert "://" not in lock
