"""A device that exists as numbers only: how long its layers, its link and everything else take, and the truth of it."""

import dataclasses
import json
from dataclasses import dataclass

from training.process.files import write_json

_MODEL_TYPE = "emulated"
_MIB = 2**20
_DEFAULT_BUCKET_MIB = 25.0
"""As DDP's own, without its smaller first one."""


@dataclass(frozen=True, kw_only=True)
class EmulatedDevice:
    """One device of several alike, and the link between them; `ms` are of one micro-batch unless they say otherwise."""

    forward_ms: float
    """Forward of one layer; its backward takes twice as long, and its gradient is ready at the end of that."""
    num_layers: int = 2
    """Layers of the model, all alike."""
    parameters_per_layer: int = 64
    """fp32 parameters that a layer really has; they are trained, exchanged and saved like any others."""
    gradient_mib_per_layer: float = 32.0
    """Gradient of a layer, as the link and the size of a bucket take it (MiB), in place of the few real bytes."""
    link_latency_ms: float = 0.0
    """What every bucket costs on two ranks and more, however small."""

    @property
    def bytes_per_real_byte(self):
        """Bytes of gradient that one real byte of it stands for."""
        return self.gradient_mib_per_layer * _MIB / (4 * self.parameters_per_layer)

    def compute_link_seconds(self, world_size):
        """Return the seconds of an all-reduce; 0 on one rank."""
        return self.link_latency_ms / 1e3 if world_size > 1 else 0.0

    def real_bucket_mib(self, bucket_mib):
        """Return how large a real bucket must be to stand for one of `bucket_mib` (None: 25 MiB)."""
        return (_DEFAULT_BUCKET_MIB if bucket_mib is None else bucket_mib) / self.bytes_per_real_byte


def read_device(model_dir):
    """Return the device that the folder's config.json describes."""
    raw = json.loads((model_dir / "config.json").read_bytes())
    assert raw.pop("model_type") == _MODEL_TYPE
    return EmulatedDevice(**raw)


def write_device(folder, device):
    """Write the device as a model folder, config.json and manifest.json; return the folder."""
    from tests.tiny import with_manifest  # which imports this

    write_json(folder / "config.json", {"model_type": _MODEL_TYPE, **dataclasses.asdict(device)})
    num_parameters = device.num_layers * device.parameters_per_layer
    return with_manifest(folder, num_parameters=num_parameters, model_type=_MODEL_TYPE)
