"""params.yaml as one validated, frozen model: the only schema of a comparison.

`make params` checks the active one in well under a second: nothing heavy is imported here.
"""

import contextlib
import importlib.metadata
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from tasks.params.cells import (
    CellParams,
    RayParams,
    list_packages,
    require_fit,
    require_installed_adapter,
    require_same_statistics,
)
from tasks.params.choices import (
    has_labels,
    has_prompts,
    list_file_names,
    read_unit,
    require_cell_name,
    require_name,
    require_one_of,
)
from tasks.params.local_files import check_paths
from tasks.params.search import SearchParams
from tasks.params.section import Day, Finite, Section, describe_first_complaint
from tasks.params.services import TrackingParams, UploadParams
from tasks.params.sources import (
    DatasetParams,
    ModelParams,
    Range,
    require_model_for,
)
from tasks.params.strict_yaml import read_strict_yaml
from tasks.params.train import TrainParams
from tasks.process.failure import ConfigurationError

MAX_CELLS = 64
"""Of a comparison."""


class QualityParams(Section):
    """What is asked of the training itself."""

    target_loss: Finite | None = Field(default=None, gt=0)
    """Training loss (nats per label) until which the report counts each cell's seconds; null: the baseline's last."""


class MeasureParams(Section):
    """How the speedup is measured: short blocks of real steps, the cells taking turns."""

    speed: bool = True
    """Whether to measure it; false: seconds of one training of each cell, which are no speedup."""
    half_width: Finite = Field(default=0.07, gt=0, le=0.5)
    """Measuring ends once every speedup's 95 % interval is within ± this share. No three launches give less than 0.07;
    with more of them that falls, 0.03 takes 17."""
    max_seconds: Finite = Field(default=90.0, gt=0, le=86_400)
    """Seconds for the speedups, launches included, narrow enough or not; three of every cell are made anyway."""
    burn_in_seconds: Finite = Field(default=5.0, ge=0, le=86_400)
    """Seconds of each launch of the ranks before turns count: its first are slower than hours of training."""
    others_share: Finite = Field(default=0.05, ge=0, le=1)
    """Share of the CPUs that others may use in a turn that counts; 1: every turn counts, whoever else was there. Where
    others used over 5 % in the mean of those that count, the speedup is unproven."""
    waterfall_seconds: Finite = Field(default=12.0, ge=0, le=86_400)
    """Seconds in which cells are timed beside what they would be with one thing less, to see where time is lost. 0: no
    waterfall."""
    block_seconds: Finite = Field(default=0.2, gt=0, le=600)
    """Seconds of one block of the baseline, about; a block has four steps at least."""
    scaling: Literal["strong", "weak"] = "strong"
    """strong: every cell has the same global batch; weak: a cell's global batch grows with its number of ranks."""
    memory: bool = True
    """Whether to see first what a step of each cell takes of memory, and what for: two steps more of each."""
    advice: bool = True
    """Whether to try the knobs that could make a cell faster, and to advise those that do."""
    advice_seconds: Finite = Field(default=12.0, gt=0, le=86_400)
    """Seconds that timing them may take."""


class VerifyParams(Section):
    """How often a training is looked at: updates of each cell that one process computes a second time."""

    updates: int = Field(default=12, ge=0, le=10_000)
    """Updates of each cell, drawn over its steps; at least two in every segment. 0: none, and no speedup is proven."""
    max_gib: Finite = Field(default=40.0, gt=0, le=100_000)
    """GiB on disk that the state before and after one of them may take; where it takes more none is looked at."""


class CostParams(Section):
    """What the devices cost; without a price the report says what follows from the speedup alone."""

    price_per_gpu_hour: Finite | None = Field(default=None, gt=0, le=100_000)
    """US dollars that one GPU costs per hour; on the CPU, what one rank takes up."""
    price_date: Day | None = None
    """The day of that price, "YYYY-MM-DD" in quotes; needed with it."""
    price_source: str | None = Field(default=None, max_length=200)
    """Where the price stands, such as the name of an offer; printed beside it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.price_per_gpu_hour is not None and self.price_date is None:
            raise ValueError("price_date: missing; allowed: the day of the price, such as '2026-11-21'")
        return self


class Params(Section):
    """One comparison."""

    name: str
    """Name of the comparison, in every output."""
    description: str = Field(default="", min_length=1, max_length=1000)
    """What it compares, in one sentence; printed at the top of the report."""
    model: ModelParams
    dataset: DatasetParams
    ranges: list[Range] = Field(min_length=1, max_length=1000)
    """Slices of the data set, trained in this order, each continuing from the last."""
    heldout: Range
    """Rows that no range overlaps, on which every model is evaluated; with dataset.heldout_source, rows of that."""
    workload: str
    """The ML problem: the name of a file in training/workloads/."""
    train: TrainParams
    cells: dict[str, CellParams] = Field(min_length=1, max_length=MAX_CELLS)
    """Name -> how the work is spread. The first cell is the baseline of every speedup."""
    left_out: dict[str, Annotated[str, Field(max_length=500)]] = Field(default_factory=dict, max_length=64)
    """Name -> why it is no cell: what could have been compared and was not, for the report. `make fit` writes it."""
    measure: MeasureParams = MeasureParams()
    verify: VerifyParams = VerifyParams()
    quality: QualityParams = QualityParams()
    cost: CostParams = CostParams()
    ray: RayParams = RayParams()
    search: SearchParams = SearchParams()
    tracking: TrackingParams = TrackingParams()
    upload: UploadParams = UploadParams()

    @property
    def baseline(self) -> str:
        """The name of the first cell, against which speedups are counted."""
        return next(iter(self.cells))

    @property
    def checkpoint_names(self) -> list[str]:
        """The file name of every semantic checkpoint that a cell makes, in that order."""
        epochs = range(1, self.train.epochs + 1)
        return [f"{self.model.name}_{part}-epoch-{epoch}.pt" for part in self.ranges for epoch in epochs]

    @property
    def num_rows_needed(self) -> int:
        """Rows of the data set up to the end of the last slice that is asked for."""
        asked = self.ranges if self.dataset.heldout_source else [*self.ranges, self.heldout]
        return max(part.end for part in asked)

    @property
    def heldout_name(self) -> str:
        """The held-out slice's name beside those of the ranges, whose rows may have the same numbers."""
        return f"heldout-{self.heldout}" if self.dataset.heldout_source else str(self.heldout)

    @property
    def heldout_title(self) -> str:
        """What readers are told of which rows are held out."""
        other = self.dataset.heldout_source
        return f"{self.heldout} of {other}" if other else str(self.heldout)

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_name("name", self.name)
        require_one_of("workload", self.workload, list_file_names("training/workloads"))
        self._check_kind_of_rows()
        for index, part in enumerate(self.ranges):
            for other in self.ranges[:index]:
                if part.overlaps(other):
                    raise ValueError(f"ranges: {part} overlaps {other}; allowed: ranges without a common row")
            if self.dataset.heldout_source is None and part.overlaps(self.heldout):
                raise ValueError(f"heldout: {self.heldout} overlaps the range {part}; allowed: rows of no range")
        max_rows = self.dataset.max_rows
        if max_rows is not None and self.num_rows_needed > max_rows:
            raise ValueError(
                f"ranges: row {self.num_rows_needed} is beyond the {max_rows} rows of {self.dataset.source}; allowed: "
                f"0-{max_rows}"
            )
        self._check_cells()
        return self

    def _check_cells(self) -> None:
        """Raise ValueError for what a cell cannot do, or could not do as the others do."""
        for name, cell in self.cells.items():
            require_cell_name(name)
            require_fit(name, cell, self.train, self.workload, normalises=self.model.norm == "sync_batch")
            train, shares = self.train_of(name), cell.shares
            # One that is still to be found will be a part of each share.
            per_forward = shares * max(train.micro_batch_size, 1)
            if train.global_batch_size % per_forward:
                below = train.global_batch_size // per_forward * per_forward
                remedy = f"{below} or {below + per_forward}" if below else str(per_forward)
                whose = "world_size" if shares == cell.world_size else "shares of the rows"
                raise ValueError(
                    f"train.global_batch_size: {train.global_batch_size} does not split over cells.{name}.{whose}="
                    f"{shares} x train.micro_batch_size={train.micro_batch_size} ({per_forward} samples per forward); "
                    f"use {remedy}"
                )
            if cell.num_nodes > 1 and self.ray.address == "local":
                raise ValueError(
                    f"ray.address: got local with cells.{name}.num_nodes={cell.num_nodes}; allowed: auto or HOST:PORT "
                    "of a running cluster, see docs/ray.md"
                )
        require_installed_adapter(self.train)
        require_same_statistics(self.model, self.train, self.cells)
        for name in self.left_out:
            require_cell_name(name)
            if name in self.cells:
                raise ValueError(f"left_out: got {name}, which is a cell; allowed: names that `cells` does not have")

    @model_validator(mode="after")
    def _check_optional(self) -> Self:
        if self.search != SearchParams() and (unfit := self.explain_unsearchable()):
            raise ValueError(unfit)
        needs_each = has_labels(self.workload) or (self.upload.checkpoints, self.upload.revisions) != ("last", "none")
        if self.train.keep == "last" and needs_each:
            raise ValueError(
                "train.keep: got last; allowed: epochs or all, where each epoch's weights are evaluated, as with "
                "classes, or published"
            )
        if self.upload.cell is not None:
            require_one_of("upload.cell", self.upload.cell, list(self.cells))
        for checkpoint in self.upload.checkpoints if isinstance(self.upload.checkpoints, list) else ():
            require_one_of("upload.checkpoints", checkpoint, self.checkpoint_names)
        return self

    def _check_kind_of_rows(self) -> None:
        """Raise ValueError unless data, model and training are of one kind, such as texts with classes."""
        unit, dataset, train, workload = read_unit(self.workload), self.dataset, self.train, self.workload
        if (unit == "image") != dataset.holds_images:
            allowed = "images, with their image_size" if unit == "image" else "texts, without image_size"
            raise ValueError(
                f"workload: got {workload} with dataset.image_size {dataset.image_size}; allowed: {allowed}"
            )
        if has_prompts(workload) != dataset.holds_instructions:
            allowed = "none, it learns no responses"
            if not dataset.holds_instructions:
                allowed = "how instructions become prompts, such as dolly"
            raise ValueError(f"dataset.template: got {dataset.template} with workload {workload}; allowed: {allowed}")
        if dataset.holds_images:
            if dataset.label is not None:
                raise ValueError(f"dataset.label: got {dataset.label!r}; allowed: null, an image's folder is its class")
        elif dataset.label is None and has_labels(workload):
            raise ValueError(f"dataset.label: missing; allowed: with workload {workload}, the column of the classes")
        elif dataset.label is not None and not has_labels(workload):
            raise ValueError(
                f"dataset.label: got {dataset.label[:80]!r} with workload {workload}; allowed: none, it learns no "
                "classes"
            )
        elif "seq_len" not in train.model_fields_set:
            raise ValueError("train.seq_len: missing; allowed: tokens per sample at most, such as 512")
        elif train.augment != "none":
            raise ValueError(f"train.augment: got {train.augment}; allowed: none, texts are trained on as they are")
        require_model_for(workload, self.model)

    def train_of(self, cell: str) -> TrainParams:
        """Return the work of a cell: the comparison's own, in micro-batches of its own where it has some."""
        own = self.cells[cell].micro_batch_size
        return self.train if own is None else self.train.model_copy(update={"micro_batch_size": own})

    def alone(self, cell: str) -> "Params":
        """Return the comparison of this cell alone, with its own work as the work."""
        spread = self.cells[cell].model_copy(update={"micro_batch_size": None})
        return self.model_copy(update={"train": self.train_of(cell), "cells": {cell: spread}})

    def grad_accum_steps(self, cell: str) -> int:
        """Return the number of micro-batches that each rank of the cell adds up for one full optimizer step."""
        train = self.train_of(cell)
        return train.global_batch_size // (self.count_shares(cell) * train.micro_batch_size)

    def count_shares(self, cell: str) -> int:
        """Return into how many shares the cell deals the micro-batches of a step."""
        return self.cells[cell].shares

    def count_statistics_rows(self, cell: str) -> int:
        """Return how many rows batch normalisation is over in the cell, all ranks' of one forward; 0: there is none."""
        rows = self.count_shares(cell) * self.train_of(cell).micro_batch_size
        return rows if self.model.norm == "sync_batch" else 0

    def read_package_versions(self, cell: str) -> dict[str, str]:
        """Return package -> the version that is installed, of those that compute the cell's updates.

        Not of one that is not installed: nothing is computed with it then.
        """
        results, adapter = {}, self.train.adapter
        for package in list_packages(self.cells[cell].strategy, adapter.model_dump() if adapter else None):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                results[package] = importlib.metadata.version(package)
        return results

    def describe_spread(self, cell: str) -> dict[str, Any]:
        """Return all that decides how the cell's updates are computed, for keys: how they are spread, and by what."""
        return {**self.cells[cell].spread, **self.read_package_versions(cell)}

    def explain_unsearchable(self) -> str | None:
        """Return why `make search` cannot run with these params, with the remedy; None if it can."""
        most = 2**31 - 1 - self.search.repeats
        if self.train.seed > most:
            return (
                f"train.seed: got {self.train.seed} with search; allowed: at most {most}, repeats have those after it"
            )
        if self.model.norm == "sync_batch":
            return (
                "model.norm: got sync_batch with a search, whose trials have micro-batches of their own; allowed: group"
            )
        if len(self.ranges) != 1:
            # With several, more epochs of the first would change all after it.
            return f"ranges: got {len(self.ranges)} with search; allowed: one, since a rung is more epochs of it"
        name, search, rows = self.baseline, self.search, self.ranges[0]
        if (num_nodes := self.cells[name].num_nodes) > 1:
            return f"cells.{name}.num_nodes: got {num_nodes} with search; allowed: 1, a trial is on one machine"
        shares = self.count_shares(name)
        if unfit := [size for size in search.batch_size if size % shares]:
            return f"search.batch_size: got {unfit[0]}; allowed: multiples of {shares}, the ranks of {name}"
        largest, most, epochs = max(search.batch_size), max(search.warmup_steps), search.rungs[-1]
        if most >= (num_steps := -(-(rows.end - rows.start) // largest) * epochs):
            return (
                f"search.warmup_steps: got {most}; allowed: less than {num_steps}, steps of {epochs} epochs in batches "
                f"of {largest}"
            )
        return None


def load_params(path: Path = Path("params.yaml"), *, looks_at_data: bool = True) -> Params:
    """Return the comparison that the file describes; local data and models have to be there if it `looks_at_data`.

    Raises ConfigurationError (exit code 2) with one line that names the key, the value and what is allowed.
    """
    try:
        params = Params.model_validate(read_strict_yaml(path))
        if looks_at_data:
            check_paths(params, path.resolve().parent)
    except ValidationError as error:
        raise ConfigurationError(f"{path}: {describe_first_complaint(error, Params)}") from None
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except OSError as error:
        where = str(error.filename)[:80]
        raise ConfigurationError(
            f"{path}: got the path {where!r}: {error.strerror}; allowed: a readable file"
        ) from None
    return params
