"""What transformers.Trainer and accelerate are fed with: rows, an order of them, a collator; and what they lose."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from benchmarks.throughput.job import AS_GIVEN, BY_LENGTH, padded
from training.workloads import find_workload

_LENGTH_MULTIPLE = 8
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Row = dict[str, Any]


class Rows(Dataset[Row]):
    """The rows as lists of tokens or bytes of pixels, with the class of each, all made before any clock starts."""

    def __init__(self, job):
        source = job.source
        if job.training.workload == "image_classification":
            self._rows = [{"pixel_values": torch.from_numpy(np.array(image))} for image in source.images]
        else:
            self._rows = [{"input_ids": job.tokens(index).tolist()} for index in range(len(source))]
        if job.training.workload != "causal_lm":
            for row, label in zip(self._rows, source.labels, strict=True):
                row["labels"] = int(label)

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return self._rows[index]


class Images(nn.Module):
    """A network of images as Trainer calls one: by name, with outputs that have names."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixel_values):
        """Return the logits: (num_images, num_classes)."""
        return {"logits": self.network(pixel_values)}


def pad_to_longest(rows):
    """Return a micro-batch as long as its longest row, up to a multiple of 8; rows that have a class keep it."""
    tokens = [np.asarray(row["input_ids"]) for row in rows]
    result = padded(tokens, length=max(len(row) for row in tokens), multiple_of=_LENGTH_MULTIPLE)
    return result | ({"labels": _labels_of(rows)} if "labels" in rows[0] else {})


def stack_images(rows):
    """Return images of bytes as one micro-batch of numbers around 0."""
    mean, deviation = (255 * torch.tensor(part).view(3, 1, 1) for part in (_MEAN, _STD))
    pixels = torch.stack([row["pixel_values"] for row in rows]).float()
    return {"pixel_values": pixels.sub_(mean).div_(deviation), "labels": _labels_of(rows)}


def _labels_of(rows):
    return torch.tensor([row["labels"] for row in rows])


def collators(job):
    """Return the collators by name: padding to the longest row, or all rows in one without padding; of images one."""
    if job.training.workload == "image_classification":
        return {"stacking": stack_images}
    if job.training.workload == "sequence_classification":
        return {"padding": pad_to_longest}
    from transformers import DataCollatorWithFlattening

    return {"padding": pad_to_longest, "flattening": DataCollatorWithFlattening()}


def feeding_settings(job):
    """Return collator, order and micro-batch sizes worth trying."""
    evened = {"padding": BY_LENGTH}
    ways = [(name, evened.get(name, AS_GIVEN)) for name in collators(job)]
    if job.training.world_size > 1 and job.training.workload == "causal_lm":
        # Nothing is padded, but processes that are dealt rows of like length wait less for each other.
        ways.append(("flattening", BY_LENGTH))
    return [
        {"collator": collator, "order": order, "micro_batch_size": size}
        for collator, order in ways
        for size in job.micro_batch_sizes
    ]


def load_model(job):
    """Return the model, on the CPU."""
    model = find_workload(job.training.workload).load_model(job.training.model_dir)
    return Images(model) if job.training.workload == "image_classification" else model


def rows_in_order(job, setting, *, first_block):
    """Return all rows in the order of the setting, from the block on that is run first."""
    return job.sequence(by_length=setting["order"] == BY_LENGTH, first_block=first_block)


def class_loss(outputs, labels, num_items_in_batch=None):
    """Return a micro-batch's part of the mean loss of a step that has so many labels."""
    return F.cross_entropy(outputs["logits"].float(), labels, reduction="sum") / num_items_in_batch
