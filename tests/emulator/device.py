"""A device that exists as numbers only: how long its layers, its link and everything else take, and the truth of it."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from training.process.files import digest_file, digest_json, write_json

_MODEL_TYPE = "emulated"
_MIB, _GIB = 2**20, 2**30
_DEFAULT_BUCKET_MIB = 25.0
"""As DDP's own, without its smaller first one."""
MAX_RANKS = 64
"""How many ranks may see each other at work."""


@dataclass(frozen=True, kw_only=True)
class EmulatedDevice:
    """One device of several alike, and the link between them; `ms` are of one micro-batch unless they say otherwise."""

    num_layers: int
    """Layers of the model, all alike."""
    forward_ms: float
    """Forward of one layer."""
    backward_ms: float
    """Backward of one layer; its gradient is ready at the end of it."""
    parameters_per_layer: int = 2048
    """fp32 parameters that a layer really has; they are trained, exchanged and saved like any others."""
    gradient_mib_per_layer: float = 32.0
    """Gradient of a layer, as the link and the size of a bucket take it (MiB), in place of the few real bytes."""
    link_latency_ms: float = 0.0
    """What every bucket costs on two ranks and more, however small."""
    link_gib_per_second: float | None = None
    """Bandwidth of the link (GiB/s), each rank's to the next one of a ring; None: no byte costs anything."""
    contention: float = 0.0
    """Share of its own time by which every other rank at work at that moment lengthens a layer's."""
    shared_folder: str | None = None
    """Folder in which the ranks see each other at work; None: there is no contention."""
    wrapper_ms: float = 0.0
    """What DDP's host code takes for every bucket, in the way of the backward, whether or not it is exchanged."""
    optimizer_ms: float = 0.0
    """The update, once per step."""
    fixed_ms: float = 0.0
    """What is left: once per step, before its first forward."""
    data_ms: float = 0.0
    """What the loader takes, beside the computation and before it."""
    copy_ms: float = 0.0
    """The copy to the device, in the way of the computation."""
    straggler_ms: float = 0.0
    """By how much one rank is later than the others in every step, before its first forward.

    A rank that is the only one of its process group never is.
    """
    straggler_rank: int | None = None
    """Which one; None: it is drawn anew in every step."""
    jitter: float = 0.0
    """Spread of everything above: standard deviation / mean, which stays what is said; lognormal.

    Each rank draws its own, but the link is one: a bucket takes equally long on all ranks.
    """
    seed: int = 0
    """Seed of the stragglers and the jitter."""

    @property
    def bytes_per_real_byte(self) -> float:
        """Bytes of gradient that one real byte of it stands for."""
        return self.gradient_mib_per_layer * _MIB / (4 * self.parameters_per_layer)

    def compute_link_seconds(self, num_bytes: float, world_size: int) -> float:
        """Return the seconds of an all-reduce of so many emulated bytes: latency + 2(N-1)/N * bytes / bandwidth.

        0 on one rank. Source of the ring's term: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms.
        """
        if world_size == 1:
            return 0.0
        seconds_per_byte = 0.0 if self.link_gib_per_second is None else 1 / (self.link_gib_per_second * _GIB)
        return self.link_latency_ms / 1e3 + 2 * (world_size - 1) / world_size * num_bytes * seconds_per_byte

    def real_bucket_mib(self, bucket_mib: float | None) -> float:
        """Return how large a real bucket must be to stand for one of `bucket_mib` (None: 25 MiB)."""
        return (_DEFAULT_BUCKET_MIB if bucket_mib is None else bucket_mib) / self.bytes_per_real_byte

    def layers_per_bucket(self, bucket_mib: float | None = None) -> list[int]:
        """Return how many layers each of DDP's buckets holds, in the order of the backward.

        DDP closes a bucket with the layer that fills it.
        """
        bucket_bytes = int(self.real_bucket_mib(bucket_mib) * _MIB)
        each = min(max(-(-bucket_bytes // (4 * self.parameters_per_layer)), 1), self.num_layers)
        whole, rest = divmod(self.num_layers, each)
        return [each] * whole + [rest] * (rest > 0)


def read_device(model_dir: Path) -> EmulatedDevice:
    """Return the device that the folder's config.json describes."""
    raw = json.loads((model_dir / "config.json").read_bytes())
    assert raw.pop("model_type") == _MODEL_TYPE
    return EmulatedDevice(**raw)


def write_device(folder: Path, device: EmulatedDevice) -> Path:
    """Write the device as a model folder, config.json and manifest.json; return the folder."""
    write_json(folder / "config.json", {"model_type": _MODEL_TYPE, **dataclasses.asdict(device)})
    files = {"config.json": digest_file(folder / "config.json")}
    write_json(
        folder / "manifest.json",
        {
            "source": "emulated device",
            "kind": "builtin",
            "revision": None,
            "commit": None,
            "label": f"an emulated device: {device.num_layers} layers that sleep",
            "num_parameters": device.num_layers * device.parameters_per_layer,
            "model_type": _MODEL_TYPE,
            "is_random_weights": True,
            "digest": digest_json(files),
            "files": files,
        },
    )
    return folder
