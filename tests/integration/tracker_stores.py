"""What each tracker has of a comparison, read back by its own means: what the contract is held to.

`read_values` returns run -> metric -> (step, value) of every stored value, in the order of steps, those of withdrawn
runs left out; `read_texts` all words of the runs that are shown; `take_away` has nothing answer where they are kept.
"""

import contextlib
import json
import os
import sqlite3
import struct
from pathlib import Path

from tasks.params.choices import list_file_names, read_constant
from tests.extras import skip_without
from tests.flows.toy_project import free_port

TRACKERS = list_file_names("tasks/services/trackers")


def require_tracker(name):
    """Skip the test where the tracker is not installed."""
    skip_without(read_constant(f"tasks/services/trackers/{name}.py", "PACKAGE"))


class Mlflow:
    """MLflow's store in mlflow.db."""

    def read_values(self, folder):
        found = {}
        query = (
            "select runs.name, metrics.key, step, value from metrics join runs using (run_uuid) "
            "where lifecycle_stage = 'active' order by step"
        )
        for run, key, step, value in self._select(folder, query):
            found.setdefault(run, {}).setdefault(key, []).append((step, value))
        return found

    def _select(self, folder, query):
        with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
            return database.execute(query).fetchall()

    def read_texts(self, folder):
        query = (
            "select {0}.key || ' ' || {0}.value from {0} join runs using (run_uuid) where lifecycle_stage = 'active'"
        )
        words = [row[0] for table in ("tags", "params") for row in self._select(folder, query.format(table))]
        pages = (file.read_text() for file in (folder / "mlruns").rglob("index.html"))
        return "\n".join([*words, *pages])

    def take_away(self, folder, patch):
        patch.setenv("MLFLOW_TRACKING_URI", f"http://me:canary-url@127.0.0.1:{free_port()}")


class Tensorboard:
    """Files of events in tensorboard/, read as TensorBoard does."""

    def read_values(self, folder):
        return {run: values for run, values, _ in self._read(folder)}

    def read_texts(self, folder):
        return "\n".join(text for _, _, text in self._read(folder))

    def take_away(self, folder, patch):
        patch.setattr("tasks.services.trackers.tensorboard.choose_uri", lambda _: "/proc/no-such-place")

    def _read(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        files = sorted((folder / "tensorboard").rglob("*tfevents*"))
        for file in files:
            # 0: every value, not a sample of them.
            seen = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
            tags = seen.Tags()
            values = {tag: [(event.step, event.value) for event in seen.Scalars(tag)] for tag in tags["scalars"]}
            texts = [seen.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]]
            is_cell = file.parent.parent != folder / "tensorboard"
            yield file.parent.name if is_cell else "small", values, "\n".join(texts)


class Wandb:
    """Runs in wandb/, as `wandb sync` sends them: records in the log format of LevelDB."""

    def read_values(self, folder):
        found = {}
        for run, records in self._read(folder):
            assert run not in found, "two folders of one run"
            values = found[run] = {}
            for record in records:
                row = {_read_key(item): json.loads(item.value_json) for item in record.history.item}
                for key, value in row.items():
                    if not key.startswith("_") and isinstance(value, int | float):
                        values.setdefault(key, []).append((row["_step"], value))
                for item in record.summary.update:
                    value = json.loads(item.value_json)
                    if _read_key(item).startswith("final/"):
                        values[_read_key(item)] = [(0, value)]
        return found

    def read_texts(self, folder):
        words = [str(record) for _, records in self._read(folder) for record in records]
        pages = (file.read_text() for file in (folder / "wandb").glob("*/files/media/html/*"))
        return "\n".join([*words, *pages])

    def take_away(self, folder, patch):
        patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
        patch.setenv("WANDB_API_KEY", "canary-key".ljust(40, "0"))

    def _read(self, folder):
        from wandb.proto import wandb_internal_pb2

        for file in sorted((folder / "wandb").glob("*/*.wandb")):
            records = [wandb_internal_pb2.Record.FromString(content) for content in _read_leveldb_log(file)]
            (started,) = (record.run for record in records if record.HasField("run"))
            yield started.display_name, records


def _read_key(item):
    return item.key or ".".join(item.nested_key)


def _read_leveldb_log(file):
    """Yield the records: blocks of 32 KiB, in them parts that are whole (1) or first, middle, last (2, 3, 4)."""
    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        room = 32_768 - at % 32_768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if kind == 0:
            at += room
            continue
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


STORES = {"mlflow": Mlflow(), "tensorboard": Tensorboard(), "wandb": Wandb()}


def read_all_bytes(folder):
    """Return the content of every file below the folder."""
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return b"\n".join(file.read_bytes() for file in files if file.is_file())
