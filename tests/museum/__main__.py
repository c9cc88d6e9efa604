"""`make museum`: train every exhibit, and comparisons without a defect, and say who caught what."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.museum.catalogue import write_table
from tests.museum.clean import run_clean
from tests.museum.exhibits import EXHIBITS
from tests.museum.museum import Museum
from tests.museum.project import Size
from tests.museum.records import RECORDS
from tests.museum.workloads import PARAMS

_CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Return 0 if every exhibit was caught by whom it has to be, and no comparison without a defect was."""
    parser = argparse.ArgumentParser(prog="tests.museum", description=__doc__)
    parser.add_argument("--clean", type=int, default=50, help="comparisons without a defect (%(default)s)")
    parser.add_argument("--only", default="", help="exhibits with these words in their name")
    parser.add_argument("--workload", choices=sorted(PARAMS), default="causal_lm", help="another: any gate may catch")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32", help="likewise")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    write_table(RECORDS)
    kind: dict[str, Any] = {"workload": given.workload, "precision": given.precision}
    is_other = kind != {"workload": "causal_lm", "precision": "fp32"}
    exhibits = [part for part in EXHIBITS if given.only in part.key and part.applies_to(**kind)]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="museum-") as scratch:
        # Of a ResNet18 a step takes a second on one core, whatever the images.
        few = {"num_rows": (45, 13)} if given.workload == "image_classification" else {}
        size = Size(workload=given.workload, train=(("precision", given.precision),), **few)
        museum = Museum(Path(scratch) / "exhibits", _CHECKOUT, size=size)
        assert not museum.clean.is_caught, museum.clean.says
        for exhibit in exhibits:
            for first in museum.first_steps if exhibit.begins_anywhere else [1]:
                outcome = museum.show(exhibit, first)
                expected = exhibit.caught_by if first == 1 else exhibit.late_caught_by
                is_right = outcome.is_caught if is_other else outcome.is_caught_by(expected)
                wrong += not is_right
                told = f"{exhibit.key}, from step {first}"
                print(
                    f"{told}: {'' if is_right else f'NOT AS EXPECTED ({exhibit.defect}): '}{outcome.says}", flush=True
                )
        for index in range(given.clean):
            outcome = run_clean(Path(scratch) / f"clean-{index}", _CHECKOUT, index, **kind)[-1]
            wrong += outcome.is_caught
            print(f"without a defect, {index + 1}: {outcome.says if outcome.is_caught else 'no alarm'}", flush=True)
    print(f"{len(exhibits)} exhibits and {given.clean} comparisons without a defect: {wrong} not as expected")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
