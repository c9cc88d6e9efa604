from tasks.records.arm_figures import find_largest_part
from tests.tasks.reporting.measured import waterfall


def test_the_largest_part_is_one_that_costs_something() -> None:
    largest = find_largest_part(waterfall())
    assert largest is not None
    assert largest.name == "exposed communication"
    assert find_largest_part(waterfall(parts=[])) is None
