"""Searches whose trials cannot be compared."""

from tests.museum.exhibit import Exhibit, Mutation
from tests.museum.exhibits.published import SEARCH

EXHIBITS = [
    Exhibit(
        key="search: trials of other numbers of epochs",
        defect="Every other trial trains for an epoch more than those that it is compared with.",
        claim=SEARCH,
        mutation=Mutation("flows/trials.py", '"segments": epochs}', '"segments": epochs + int(self.name[-1]) % 2}'),
        caught_by="search: allowed: as many in all trials that are compared",
        scenario="search",
        params=(("search", {"batch_size": [8], "warmup_steps": [0], "trials": 2, "rungs": [1, 2]}),),
    ),
    Exhibit(
        key="search: schedule begins again in every epoch",
        defect="The learning rate of a trial falls to nothing in its first epoch, and begins at its peak in the next.",
        claim=SEARCH,
        mutation=Mutation("tasks/params/trials.py", '"schedule_span": "run"', '"schedule_span": "segment"'),
        caught_by="search: by one schedule over",
        scenario="search",
        params=(("search", {"batch_size": [8], "warmup_steps": [0], "trials": 1, "rungs": [2]}),),
    ),
]
