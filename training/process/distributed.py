"""The ranks of a run: who they are, what each computes on, and what they tell each other outside the timed steps."""

import contextlib
import datetime
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import ArrayLike

from ddp_audit.process.flight_recorder import start_recorder
from training.config import STORE, TrainingConfig
from training.process import failure
from training.process.torch_private import count_begun

# The longest wait of one rank for another: longer than rank 0 writes any checkpoint. What hangs is found by the stage.
_TIMEOUT = datetime.timedelta(hours=12)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This rank among the others."""

    rank: int
    """From 0; rank 0 alone writes files."""
    world_size: int
    """Number of ranks."""
    device: torch.device
    """Where this rank's model lives."""
    backend: str
    """What carries gradients: gloo or nccl."""
    gradient_group: dist.ProcessGroup
    """The group for gradients and nothing else, so that its sequence number counts their all-reduces."""
    counted_groups: list[dist.ProcessGroup] = field(default_factory=list)
    """Further groups of a strategy, for gradients and nothing else."""

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def count_collectives(self) -> int:
        """Return how many collectives this rank has begun, of all groups."""
        groups: tuple[Any, ...] = (dist.group.WORLD, self.gradient_group)
        return sum(count_begun(group) for group in groups)

    def join_group(self, groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Return the one of these new groups that this rank is in; to be called by all ranks, with the same groups."""
        made: list[Any] = [dist.new_group(list(group), backend=self.backend, timeout=_TIMEOUT) for group in groups]
        (mine,) = (group for group, members in zip(made, groups, strict=True) if self.rank in members)
        result: dist.ProcessGroup = mine
        return result

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gather(self, values: ArrayLike) -> np.ndarray:
        """Return every rank's values, in rank order: (world_size, *shape), as float64."""
        mine = torch.from_numpy(np.array(values, dtype=np.float64))
        if self.world_size == 1:
            return mine.numpy()[None]
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine)
        return torch.stack(parts).numpy()

    def highest(self, value: int) -> int:
        """Return the highest of all ranks' values: what one rank knows, all know."""
        return int(self.gather([value]).max())

    def ask_first_rank(self, ask: Callable[[], Any]) -> Any:
        """Return, on every rank, the JSON value that `ask` gives on rank 0; the others wait for it.

        A TrainingError there is raised on every rank.
        """
        if self.world_size == 1:
            return ask()
        value = problem = None
        if self.is_first:
            try:
                value = ask()
            except failure.TrainingError as error:
                problem = type(error).__name__, str(error)
        value, problem = self.gather_values([value, problem])[0]
        if problem is not None:
            name, message = problem
            raise getattr(failure, name)(message)
        return value

    def gather_values(self, value: Any) -> list[Any]:
        """Return every rank's JSON value, in rank order: all_gather_object would unpickle what comes in at a port."""
        said = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
        return [json.loads(row.tobytes()) for row in self.gather_rows(said[:, None])]

    def gather_rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return every rank's (n, width) rows of integers, in rank order; n may differ between ranks."""
        if self.world_size == 1:
            return [rows]
        sizes = self.gather([len(rows)]).astype(int)[:, 0]
        padded = np.zeros((int(sizes.max()), rows.shape[1]), dtype=rows.dtype)
        padded[: len(rows)] = rows
        mine = torch.from_numpy(padded)
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine)
        return [part[:size].numpy() for part, size in zip(parts, sizes, strict=True)]


_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@contextlib.contextmanager
def join_ranks(config: TrainingConfig) -> Iterator[Ranks]:
    """Join the process group that torchrun's environment describes (alone without torchrun), and leave it at the end.

    Raises ValueError if torchrun started another number of ranks, or there are too few GPUs.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != config.world_size:
        raise ValueError(f"world_size={config.world_size}, but {world_size} ranks were started; allowed: as many")
    device = _select_device(config, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    # NCCL refuses two ranks on one GPU.
    backend = "nccl" if device.type == "cuda" and not config.oversubscribe else "gloo"
    with _use_loopback(world_size):
        start_recorder()
        if "TORCHELASTIC_RUN_ID" in os.environ and STORE not in os.environ:
            dist.init_process_group("gloo", timeout=_TIMEOUT)
        else:
            store = _open_store(rank, world_size)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
        group: Any = dist.new_group(backend=backend, timeout=_TIMEOUT)
        yield Ranks(rank=rank, world_size=world_size, device=device, backend=backend, gradient_group=group)
        # After an error the others may be gone, and leaving in good order would wait for them.
        dist.destroy_process_group()


def _open_store(rank: int, world_size: int) -> dist.Store:
    """Return where the ranks meet: in a file, at rank 0's port, or nowhere if this one is alone."""
    if "RANK" not in os.environ:
        return dist.HashStore()
    if STORE in os.environ:
        return dist.FileStore(os.environ[STORE], world_size)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # torch by itself would listen on every interface.
    handle = socket.create_server((host, port)).detach() if rank == 0 else None
    return dist.TCPStore(
        host, port, world_size, rank == 0, timeout=_TIMEOUT, wait_for_workers=False, master_listen_fd=handle
    )


def _select_device(config: TrainingConfig, *, local_rank: int) -> torch.device:
    if config.device == "cpu":
        return torch.device("cpu")
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0 or (local_rank >= num_gpus and not config.oversubscribe):
        raise ValueError(f"local rank {local_rank} needs a GPU, {num_gpus} are there; allowed: oversubscribe: true")
    device = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def _use_loopback(world_size: int) -> Iterator[None]:
    """Keep gloo and NCCL off the network where all ranks are on this machine, whose name may not even resolve.

    What this process starts afterwards, which may be ranks on several machines, does not inherit it.
    """
    before = {name: os.environ.get(name) for name in _INTERFACES}
    names = [name for _, name in socket.if_nameindex()]
    if int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) == world_size and "lo" in names:
        os.environ |= dict.fromkeys(_INTERFACES, "lo")
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


_CGROUP = Path("/sys/fs/cgroup")


def collect_device_facts(device: torch.device) -> dict[str, Any]:
    """Return what RankDevice (training/record/segment_facts.py) says; None for what the system does not tell."""
    return {
        "gpu_uuid": str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None,
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_quota": _read_cpu_quota(),
    }


def _read_cpu_quota() -> float | None:
    """Return the least quota of this process's control group and those around it, in cores; version 2 alone."""
    try:
        path = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
    except OSError:
        return None
    quotas = []
    for folder in (_CGROUP / path, *(_CGROUP / path).parents):
        try:
            limit, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if limit != "max":
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)
