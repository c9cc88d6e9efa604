"""What the script's loaders give out: which rows, in which pass, and how long it is waited for."""

import functools
import itertools
import math
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import index
from threading import get_ident
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ddp_audit.observer import timeline
from ddp_audit.observer.record import MAIN, Guard, Record
from ddp_audit.observer.samples import is_on_host, list_tensors, put_rows_first, read_rows
from ddp_audit.observer.torch_private import BEGINNINGS, NEXT_INDEX, Pass

_KEPT_BATCHES, _MOST_WAITING = 8, 256
"""More are kept of which no row was asked for yet: transformers.Trainer gathers all micro-batches of a step first."""
_PLAIN_BATCHES = 4
"""A loader so many of whose batches were found without checksums is taken not to need any; later ones are summed where
they are asked for and still there."""
_MOST_IDS = 4096
_SHORT_ROW = 16
_SUMMED_BYTES = 4096


@dataclass
class Given:
    """A batch that a loader gave out; its rows are known by what they hold, none is kept."""

    loader: str
    """Which loader, by its kind of data set: the same on every rank and in every cell."""
    is_first_pass: bool
    """Whether it is of the loader's first pass."""
    ids: list[int] | None
    """Indices into the data set, one per row; None where the loader does not say."""
    num_rows: int
    """Leading dimension of its first tensor; 0 where it has none."""
    num_views: int
    """Tensors with numbers with a fraction that are like the first: of a picture several views, which may be put
    together as so many times the rows."""
    tensors: list[Callable[[], torch.Tensor | None]]
    """As long as the script holds them."""
    places: list[dict[int, int]] | None = None
    """Checksum of a row -> its place, of each tensor on the host whose rows can be told from each other."""
    is_learned: bool | None = None
    """Whether a model with gradients was fed it; False: one without, as what encodes pictures first; None: none yet."""

    def find_places(self, checksums: list[int]) -> list[int] | None:
        """Return the places of these rows in the batch, whose checksums are kept; None if one is not in it."""
        if self.places is None:
            alive = [tensor for item in self.tensors if (tensor := item()) is not None]
            summed = [_sum_rows(tensor) for tensor in alive if len(tensor) == self.num_rows]
            self.places = [{checksum: at for at, checksum in enumerate(checksums)} for checksums in summed if checksums]
        known = ([of_tensor.get(checksum) for checksum in checksums] for of_tensor in self.places)
        return next(([at for at in places if at is not None] for places in known if None not in places), None)


class Loaders:
    """Every DataLoader of the process."""

    def __init__(self, record: Record, guard: Guard, times: timeline.Timeline) -> None:
        self._record, self._guard, self._times = record, guard, times
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._num_passes: dict[str, int] = {}
        self._begun_at: dict[str, int] = {}
        self._evaluating: set[str | None] = set()
        self._given_out: set[str] = set()
        """Loaders all of whose batches were taken, and that nobody has asked for one more: as Lightning does."""
        self._lengths: dict[str, int | None] = {}
        self._num_plain: dict[str, float] = {}
        """Loader -> batches that were found without a checksum; none of one where that was not enough."""
        self.given: deque[Given] = deque()
        self.count_steps: Callable[[], int] = lambda: 0

    def watch(self) -> None:
        """From now on every loader is watched."""
        begin, advance, draw = DataLoader.__iter__, Pass.__next__, getattr(Pass, NEXT_INDEX)
        give, keep_ids = self._guard.wrap(self._give), self._guard.wrap(_keep_ids)

        @functools.wraps(begin)
        def observed_begin(loader: Any) -> Any:
            times = self._enter(self._names.get(loader))
            try:
                # Workers are started here.
                return begin(loader)
            finally:
                times.leave()

        @functools.wraps(advance)
        def observed_advance(iterator: Any) -> Any:
            held = iterator.__dict__
            name = held.get("_ddp_compare_loader")
            if name is None:
                return advance(iterator)
            times = self._enter(name)
            try:
                batch = advance(iterator)
                times.switch(timeline.OBSERVER)
                give(held, name, batch)
            except StopIteration:
                self._guard(self._write_pass, name, is_over=True)
                raise
            finally:
                times.leave()
            return batch

        @functools.wraps(draw)
        def observed_index(iterator: Any) -> Any:
            result = draw(iterator)
            keep_ids(iterator.__dict__, result)
            return result

        # dataloader.py of torch asks the class, so that workers and prefetching stay as they are.
        DataLoader.__iter__ = observed_begin  # type: ignore[method-assign]
        Pass.__next__ = observed_advance
        setattr(Pass, NEXT_INDEX, observed_index)
        for name in BEGINNINGS:
            self._watch_beginning(name)

    def _watch_beginning(self, name: str) -> None:
        original = getattr(Pass, name)

        @functools.wraps(original)
        def observed(iterator: Any, loader: Any, *arguments: Any, **named: Any) -> None:
            original(iterator, loader, *arguments, **named)
            self._guard(self._begin, loader, iterator)

        setattr(Pass, name, observed)

    def finish(self) -> None:
        """Write which passes were whole, where that is known at the end alone."""
        for name in list(self._given_out):
            self._write_pass(name, is_over=True)

    def find(
        self, tensors: list[torch.Tensor], *, is_training: bool
    ) -> tuple[Given | None, list[int] | None, list[torch.Tensor]]:
        """Return the batch that a model's inputs came out of, and the ids of their rows; None for what is not known.

        And its first tensor, in a list, where the inputs were made of it, as by noise: its rows are what they were.
        The very tensor that was given out is it, else rows are known by what they hold; tensors on another device come
        in the order in which they were given.
        """
        for tensor in tensors:
            holding = [given for given in self.given for item in given.tensors if item() is tensor]
            # What is given out with every batch says nothing of one.
            if len(holding) == 1:
                return self._use(holding[0], is_training), holding[0].ids, []
        for tensor in tensors:
            checksums = _sum_rows(tensor)
            for given in reversed(self.given) if checksums else ():
                places = given.find_places(checksums)
                if places is not None:
                    self._num_plain[given.loader] = -math.inf
                    ids = None if given.ids is None else [given.ids[at] for at in places]
                    return self._use(given, is_training), ids, []
        leading = {len(tensor) for tensor in tensors if tensor.dim()}
        waiting = [given for given in self.given if given.is_learned is None]
        if is_training:
            last = self.given[-1].loader if self.given else None
            waiting += [given for given in reversed(self.given) if given.is_learned is False and given.loader == last]
        # An object, such as a graph, is fed in parts of its own.
        fitting = (given for given in waiting if given.num_rows in leading or not given.tensors)
        joined = (
            given for given in waiting if any(given.num_rows * at in leading for at in range(2, given.num_views + 1))
        )
        fed = next(itertools.chain(fitting, joined), None)
        if fed is None:
            return None, None, []
        first = [held for item in fed.tensors[:1] if (held := item()) is not None and is_on_host(held)]
        return self._use(fed, is_training), fed.ids, first

    def _enter(self, name: str | None) -> timeline.Timeline:
        """Return the timeline that a wait for a loader counts in, which begins: one of its own beside the main thread.

        Whoever asks a loader for training rows evaluates no more.
        """
        times = self._times if get_ident() == MAIN else timeline.Timeline(timeline.Place(None))
        if name in self._evaluating:
            times.enter(timeline.EVALUATION)
        else:
            times.enter(timeline.DATA, timeline.SCRIPT)
        return times

    def _use(self, given: Given, is_training: bool) -> Given:
        given.is_learned = is_training or bool(given.is_learned)
        self._num_plain[given.loader] = self._num_plain.get(given.loader, 0) + 1
        (self._evaluating.discard if is_training else self._evaluating.add)(given.loader)
        return given

    def _begin(self, loader: Any, iterator: Any) -> None:
        name = self._names.get(loader)
        if name is None:
            dataset = loader.dataset
            length = None if isinstance(dataset, IterableDataset) else _read_length(dataset)
            # One that is made anew for every pass is the same one; of several at a time each has a name.
            names = (f"{type(dataset).__name__}-{length}-{number}" for number in itertools.count())
            taken = set(self._names.values())
            name = self._names[loader] = next(name for name in names if name not in taken)
            if name not in self._lengths:
                self._record.write("loader", loader=name, num_rows=length, num_workers=loader.num_workers)
            self._lengths[name] = length
        size = self._lengths[name] and _read_length(loader)
        iterator.__dict__ |= {
            "_ddp_compare_loader": name, "_ddp_compare_size": size, "_ddp_compare_left": size,
            "_ddp_compare_ids": deque(),
        }  # fmt: skip
        self._begin_pass(name)

    def _begin_pass(self, name: str) -> None:
        if name in self._given_out:
            self._write_pass(name, is_over=True)
        step = self.count_steps()
        if step > self._begun_at.get(name, -1):
            # Else nothing was learned from the pass before: somebody took a look at a batch.
            self._num_passes[name] = self._num_passes.get(name, 0) + 1
        self._begun_at[name] = step
        self._write_pass(name, is_over=False)

    def _write_pass(self, name: str, *, is_over: bool) -> None:
        self._given_out.discard(name)
        self._record.write("pass", loader=name, is_over=is_over, step=self.count_steps())

    def _give(self, held: dict[str, Any], name: str, batch: Any) -> None:
        if (left := held.get("_ddp_compare_left")) is not None:
            if not left:
                # One iterator goes round and round, as of loaders whose workers stay for all epochs.
                self._begin_pass(name)
                left = held["_ddp_compare_size"]
            held["_ddp_compare_left"] = left - 1
            if left == 1:
                self._given_out.add(name)
        queue = held["_ddp_compare_ids"]
        ids = queue.popleft() if queue else None
        tensors = [tensor for _, tensor in put_rows_first(list_tensors(batch)) if tensor.dim()]
        # Texts become tensors later. Python's len is slow with a tensor.
        num_rows = tensors[0].size(0) if tensors else len(ids or ())
        is_known = ids is not None and (len(ids) == num_rows or _is_apart(batch, len(ids)))
        if not is_known or self._lengths.get(name) is None:
            ids = None
        alive: list[Callable[[], torch.Tensor | None]] = list(map(weakref.ref, tensors))
        has_views = len(tensors) > 1 and tensors[0].is_floating_point()
        num_views = sum(tensor.shape == tensors[0].shape for tensor in tensors) if has_views else 1
        given = Given(name, self._num_passes.get(name) == 1, ids, num_rows, num_views, alive)
        if self._num_plain.get(name, 0) < _PLAIN_BATCHES:
            given.find_places([])
        self.given.append(given)
        while len(self.given) > _KEPT_BATCHES and (
            self.given[0].is_learned is not None or len(self.given) > _MOST_WAITING
        ):
            self.given.popleft()


def _sum_rows(tensor: torch.Tensor) -> list[int]:
    """Return a checksum per row of a tensor on the host; none where rows are too short to be told from each other."""
    if not is_on_host(tensor) or not 0 < len(tensor) <= _MOST_IDS:
        return []
    if tensor.numel() // len(tensor) * tensor.element_size() < _SHORT_ROW:
        return []
    return [zlib.crc32(row) for row in read_rows(tensor, _SUMMED_BYTES)]


def _read_length(sized: Any) -> int | None:
    """Return its length; None for what has none, such as a data set or a sampler without end."""
    try:
        return len(sized)
    except Exception:  # whatever a class of the script raises
        return None


def _is_apart(batch: Any, number: int) -> bool:
    """Return whether a batch keeps so many rows apart, as of pictures that are not of one size."""
    parts = batch.values() if isinstance(batch, Mapping) else [batch, *batch] if isinstance(batch, list | tuple) else ()
    return any(isinstance(part, list | tuple) and len(part) == number for part in parts)


def _keep_ids(held: dict[str, Any], outcome: Any) -> None:
    # What has no length may be read but once.
    if hasattr(outcome, "__len__") and len(outcome) <= _MOST_IDS:
        try:
            ids = list(map(index, outcome))
        except TypeError:  # one index, or what is none; numpy's and torch's are
            return
        held.setdefault("_ddp_compare_ids", deque()).append(ids)
