"""What the script's loaders give out: which rows, in which pass, and how long it is waited for."""

import functools
import math
import weakref
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from ddp_audit.observer import timeline
from ddp_audit.observer.record import Guard, Record
from ddp_audit.observer.samples import is_on_host, list_tensors, read_rows
from ddp_audit.observer.torch_private import NEXT_INDEX, Pass, get_kept_pass

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

    loader: int
    """Which loader, in the order in which they were first used."""
    is_first_pass: bool
    """Whether it is of the loader's first pass."""
    ids: list[int] | None
    """Indices into the data set, one per row; None where the loader does not say."""
    num_rows: int
    """Leading dimension of its first tensor; 0 where it has none."""
    tensors: list[Callable[[], torch.Tensor | None]]
    """As long as the script holds them."""
    places: list[dict[int, int]] | None = None
    """Checksum of a row -> its place, of each tensor on the host whose rows can be told from each other."""
    is_used: bool = False

    def sum_rows(self) -> None:
        """Keep the checksums of its rows."""
        if self.places is None:
            alive = [tensor for item in self.tensors if (tensor := item()) is not None]
            summed = [_sum_rows(tensor) for tensor in alive if len(tensor) == self.num_rows]
            self.places = [{checksum: at for at, checksum in enumerate(checksums)} for checksums in summed if checksums]

    def find_places(self, checksums: list[int]) -> list[int] | None:
        """Return the places of these rows in the batch; None if one is not in it."""
        self.sum_rows()
        for of_tensor in self.places or []:
            results = [of_tensor.get(checksum) for checksum in checksums]
            if None not in results:
                return [result for result in results if result is not None]
        return None


class Loaders:
    """Every DataLoader of the process."""

    def __init__(self, record: Record, guard: Guard, times: timeline.Timeline) -> None:
        self._record, self._guard, self._times = record, guard, times
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._num_passes: dict[int, int] = {}
        self._begun_at: dict[int, int] = {}
        self._evaluating: set[int] = set()
        self._given_out: set[int] = set()
        """Loaders all of whose batches were taken, and that nobody has asked for one more: as Lightning does."""
        self._lengths: dict[int, int | None] = {}
        self._num_plain: dict[int, float] = {}
        """Loader -> batches that were found without a checksum; none of one where that was not enough."""
        self.given: deque[Given] = deque()
        self.count_steps: Callable[[], int] = lambda: 0

    def watch(self) -> None:
        """From now on every loader is watched."""
        begin, advance, index = DataLoader.__iter__, Pass.__next__, getattr(Pass, NEXT_INDEX)

        @functools.wraps(begin)
        def observed_begin(loader: Any) -> Any:
            kept = get_kept_pass(loader)
            if kept is not None:
                self._guard(_clear_ids, kept)
            self._times.enter(self._name_wait(self._numbers.get(loader)))
            try:
                # Workers are started here.
                iterator = begin(loader)
            finally:
                self._times.leave()
            self._guard(self._begin, loader, iterator)
            return iterator

        @functools.wraps(advance)
        def observed_advance(iterator: Any) -> Any:
            number = iterator.__dict__.get("_ddp_compare_loader")
            if number is None:
                return advance(iterator)
            self._times.enter(self._name_wait(number))
            try:
                batch = advance(iterator)
                self._times.switch(timeline.OBSERVER)
                self._guard(self._give, iterator, number, batch)
            except StopIteration:
                self._guard(self._end, iterator, number)
                raise
            finally:
                self._times.leave()
            return batch

        @functools.wraps(index)
        def observed_index(iterator: Any) -> Any:
            result = index(iterator)
            self._guard(_keep_ids, iterator, result)
            return result

        # dataloader.py of torch asks the class, so that workers and prefetching stay as they are.
        DataLoader.__iter__ = observed_begin  # type: ignore[method-assign]
        Pass.__next__ = observed_advance
        setattr(Pass, NEXT_INDEX, observed_index)

    def finish(self) -> None:
        """Write which passes were whole, where that is known at the end alone."""
        for number in list(self._given_out):
            self._write_end(number)

    def find(self, tensors: list[torch.Tensor], *, is_training: bool) -> tuple[Given | None, list[int] | None]:
        """Return the batch that a model's inputs came out of, and the ids of their rows; None for what is not known.

        The very tensor that was given out is it, else rows are known by what they hold; tensors on another device come
        in the order in which they were given.
        """
        for tensor in tensors:
            holding = [given for given in self.given for item in given.tensors if item() is tensor]
            # What is given out with every batch says nothing of one.
            if len(holding) == 1:
                return self._use(holding[0], is_training), holding[0].ids
        for tensor in tensors:
            checksums = _sum_rows(tensor)
            for given in reversed(self.given) if checksums else ():
                places = given.find_places(checksums)
                if places is not None:
                    self._num_plain[given.loader] = -math.inf
                    ids = None if given.ids is None else [given.ids[at] for at in places]
                    return self._use(given, is_training), ids
        leading = {len(tensor) for tensor in tensors if tensor.dim()}
        for given in self.given:
            if not given.is_used and given.num_rows in leading:
                return self._use(given, is_training), given.ids
        return None, None

    def _name_wait(self, number: int | None) -> str:
        """Return what waiting for a loader counts as; whoever asks one for training rows evaluates no more."""
        if number in self._evaluating:
            return timeline.EVALUATION
        self._times.name_the_rest(timeline.SCRIPT)
        return timeline.DATA

    def _use(self, given: Given, is_training: bool) -> Given:
        given.is_used = True
        self._num_plain[given.loader] = self._num_plain.get(given.loader, 0) + 1
        if is_training:
            self._evaluating.discard(given.loader)
        else:
            self._evaluating.add(given.loader)
        return given

    def _begin(self, loader: Any, iterator: Any) -> None:
        number = self._numbers.get(loader)
        if number is None:
            number = self._numbers[loader] = len(self._numbers)
            self._lengths[number] = _read_length(loader.dataset)
            sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
            inner = getattr(sampler, "sampler", sampler)
            self._record.write(
                "loader", loader=number, num_rows=self._lengths[number], batch_size=getattr(loader, "batch_size", None),
                sampler=type(inner).__name__, dataset=type(loader.dataset).__name__, num_workers=loader.num_workers,
            )  # fmt: skip
        if number in self._given_out:
            self._write_end(number)
        step = self.count_steps()
        if step > self._begun_at.get(number, -1):
            # Else nothing was learned from the pass before: somebody took a look at a batch.
            self._num_passes[number] = self._num_passes.get(number, 0) + 1
        self._begun_at[number] = step
        iterator._ddp_compare_loader = number
        if self._lengths[number] is not None:
            iterator._ddp_compare_left = len(loader)
        self._record.write("pass", loader=number, is_over=False, step=step)

    def _end(self, iterator: Any, number: int) -> None:
        _clear_ids(iterator)
        self._write_end(number)

    def _write_end(self, number: int) -> None:
        self._given_out.discard(number)
        self._record.write("pass", loader=number, is_over=True, step=self.count_steps())

    def _give(self, iterator: Any, number: int, batch: Any) -> None:
        if (left := iterator.__dict__.get("_ddp_compare_left")) is not None:
            iterator._ddp_compare_left = left - 1
            if left == 1:
                self._given_out.add(number)
        queue = iterator.__dict__.get("_ddp_compare_ids")
        ids = queue.popleft() if queue else None
        tensors = [tensor for _, tensor in list_tensors(batch) if tensor.dim()]
        num_rows = len(tensors[0]) if tensors else 0
        if ids is not None and (len(ids) != num_rows or self._lengths.get(number) is None):
            ids = None
        given = Given(
            number, self._num_passes.get(number) == 1, ids, num_rows, [weakref.ref(tensor) for tensor in tensors]
        )
        if self._num_plain.get(number, 0) < _PLAIN_BATCHES:
            given.sum_rows()
        self.given.append(given)
        while len(self.given) > _KEPT_BATCHES and (self.given[0].is_used or len(self.given) > _MOST_WAITING):
            self.given.popleft()


def _sum_rows(tensor: torch.Tensor) -> list[int]:
    """Return a checksum per row of a tensor on the host; none where rows are too short to be told from each other."""
    if not is_on_host(tensor) or not 0 < len(tensor) <= _MOST_IDS:
        return []
    if tensor.numel() // len(tensor) * tensor.element_size() < _SHORT_ROW:
        return []
    return [zlib.crc32(row) for row in read_rows(tensor, _SUMMED_BYTES)]


def _read_length(dataset: Any) -> int | None:
    """Return how many rows a data set has whose rows are asked for by their index; None for a stream."""
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    try:
        return len(dataset)
    except TypeError:
        return None


def _keep_ids(iterator: Any, outcome: Any) -> None:
    if isinstance(outcome, list) and len(outcome) <= _MOST_IDS and all(isinstance(result, int) for result in outcome):
        iterator.__dict__.setdefault("_ddp_compare_ids", deque()).append(list(outcome))


def _clear_ids(iterator: Any) -> None:
    iterator.__dict__.pop("_ddp_compare_ids", None)
