"""params.yaml as one validated, frozen model: the only schema of a comparison.

`make params` checks the active one in well under a second: nothing heavy is imported here.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from tasks.params.adapter import require_fit_for_adapter
from tasks.params.cells import CellParams, RayParams
from tasks.params.choices import (
    NAME,
    has_labels,
    list_file_names,
    read_unit,
    require_cell_name,
    require_label,
    require_one_of,
    require_template_for,
)
from tasks.params.complaint import describe_first_complaint
from tasks.params.local_files import check_paths
from tasks.params.norms import count_statistics_rows, explain_unfit_norm, make_own_train
from tasks.params.options import explain_unfit, require_evaluating, require_exact
from tasks.params.search import SearchParams
from tasks.params.section import Day, Finite, Section
from tasks.params.services import TrackingParams, UploadParams
from tasks.params.sources import (
    DatasetParams,
    ModelParams,
    Range,
    count_rows_needed,
    require_model_for,
)
from tasks.params.strict_yaml import read_strict_yaml
from tasks.params.train import TrainParams
from tasks.process.failure import ConfigurationError
from tasks.strategies import count_shares


class QualityParams(Section):
    """What is asked of the training itself."""

    target_loss: Finite | None = Field(default=None, gt=0)
    """Training loss (nats per label) until which the report counts each cell's seconds; null: the baseline's last."""


class MeasureParams(Section):
    """How the speedup is measured: short blocks of real steps, the cells taking turns."""

    speed: bool = True
    """Whether to measure it so; false: the only speedup is that of the whole training, without an interval."""
    half_width: Finite = Field(default=0.07, gt=0, le=0.5)
    """Measuring ends once every speedup's 95 % interval is within +- this share. No three starts give less than 0.07;
    with more of them that falls, 0.03 takes 17."""
    max_seconds: Finite = Field(default=90.0, gt=0, le=86_400)
    """Seconds for the speedups, starts of the ranks included, narrow enough or not; three starts of every cell are made
    anyway."""
    burn_in_seconds: Finite = Field(default=5.0, ge=0, le=86_400)
    """Seconds of each start of the ranks before turns count: its first are slower than hours of training."""
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
    description: str = ""
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
    cells: dict[str, CellParams] = Field(min_length=1, max_length=64)
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
        return count_rows_needed(self.ranges if self.dataset.heldout_source else [*self.ranges, self.heldout])

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
    def _check_cluster(self) -> Self:
        for name, cell in self.cells.items():
            if cell.num_nodes > 1 and self.ray.address == "local":
                raise ValueError(
                    f"ray.address: got local with cells.{name}.num_nodes={cell.num_nodes}; allowed: auto or HOST:PORT "
                    "of a running cluster, see docs/ray.md"
                )
        return self

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("must be letters, digits, '.', '_' and '-', at most 64, starting with a letter or digit")
        return value

    @field_validator("description")
    @classmethod
    def _check_description(cls, value: str) -> str:
        if not value.strip() or len(value) > 1000:
            raise ValueError("must be one sentence of 1 to 1000 characters")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
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
        for name, cell in self.cells.items():
            require_cell_name(name)
            if wrong := explain_unfit(cell.strategy, cell.options, cell.world_size, unit=read_unit(self.workload)):
                raise ValueError(f"cells.{name}.{wrong}")
            train, shares = self.train_of(name), self.count_shares(name)
            # One that is still to be found will be a part of each share.
            per_forward = shares * max(train.micro_batch_size, 1)
            if train.global_batch_size % per_forward:
                below = train.global_batch_size // per_forward * per_forward
                remedy = f"{below} or {below + per_forward}" if below else str(per_forward)
                whose = "world_size" if shares == self.cells[name].world_size else "shares of the rows"
                raise ValueError(
                    f"train.global_batch_size: {train.global_batch_size} does not split over cells.{name}.{whose}="
                    f"{shares} x train.micro_batch_size={train.micro_batch_size} ({per_forward} samples per forward); "
                    f"use {remedy}"
                )
            require_evaluating(f"cells.{name}", cell.strategy, self.train.eval_every_steps)
            if self.train.exact:
                require_exact(f"cells.{name}", cell.strategy, cell.options)
        if self.train.adapter is not None:
            require_fit_for_adapter(self.train.adapter, self.workload, self.cells, compiles=self.train.compile)
        if unfit := explain_unfit_norm(self.model, self.train, self.cells):
            raise ValueError(unfit)
        self._check_optional()
        return self

    def _check_optional(self) -> None:
        """Raise ValueError for what optional sections ask of the comparison and it has not."""
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
        if isinstance(self.upload.checkpoints, list):
            for checkpoint in self.upload.checkpoints:
                require_one_of("upload.checkpoints", checkpoint, self.checkpoint_names)

    @model_validator(mode="after")
    def _check_left_out(self) -> Self:
        for name in self.left_out:
            require_cell_name(name)
            if name in self.cells:
                raise ValueError(f"left_out: got {name}, which is a cell; allowed: names that `cells` does not have")
        return self

    def _check_kind_of_rows(self) -> None:
        """Raise ValueError unless data and training are both of images, or both of texts."""
        needs_images, train = read_unit(self.workload) == "image", self.train
        if needs_images != self.dataset.holds_images:
            raise ValueError(
                f"workload: got {self.workload} with dataset.image_size {self.dataset.image_size}; allowed: "
                f"{'images, with their image_size' if needs_images else 'texts, without image_size'}"
            )
        if needs_images and self.dataset.label is not None:
            raise ValueError(
                f"dataset.label: got {self.dataset.label!r}; allowed: null, an image's folder is its class"
            )
        if not needs_images:
            require_label(self.workload, self.dataset.label)
        require_template_for(self.workload, self.dataset.template)
        require_model_for(self.workload, self.model)
        if needs_images and (train.packing or train.compile):
            got = f"got {str(train.packing or train.compile).lower()}"
            raise ValueError(f"train.packing, train.compile: {got}; allowed: false, images have neither")
        if train.packing and train.compile and not needs_images and has_labels(self.workload):
            raise ValueError(
                "train.packing, train.compile: got true, true; allowed: one of them true, packs of texts that are "
                "classified are not compiled"
            )
        if needs_images and train.activation_checkpointing != "none":
            raise ValueError("train.activation_checkpointing: got layers; allowed: none for images")
        if not needs_images and "seq_len" not in train.model_fields_set:
            raise ValueError("train.seq_len: missing; allowed: tokens per sample at most, such as 512")
        if not needs_images and train.augment != "none":
            raise ValueError(f"train.augment: got {train.augment}; allowed: none, texts are trained on as they are")

    def train_of(self, cell: str) -> TrainParams:
        """Return the work of a cell: the comparison's own, in micro-batches of its own where it has some."""
        return make_own_train(self.train, self.cells[cell])

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
        spread = self.cells[cell]
        return count_shares(spread.strategy, spread.world_size, spread.options)

    def count_statistics_rows(self, cell: str) -> int:
        """Return how many rows batch normalisation is over in the cell, all ranks' of one forward; 0: there is none."""
        return count_statistics_rows(self.model, self.train, self.cells[cell])

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
        nodes, shares = self.cells[self.baseline].num_nodes, self.count_shares(self.baseline)
        return self.search.explain_unfit(self.baseline, ranges=self.ranges, num_nodes=nodes, shares=shares)


def load_params(path: Path = Path("params.yaml"), *, looks_at_data: bool = True) -> Params:
    """Return the comparison that the file describes; local data and models have to be there if it `looks_at_data`.

    Raises ConfigurationError (exit code 2) with one line that names the key, the value and what is allowed.
    """
    try:
        params = Params.model_validate(read_strict_yaml(path))
        if looks_at_data:
            base = path.resolve().parent
            check_paths(params.model, params.dataset, ranges=params.ranges, heldout=params.heldout, base=base)
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
