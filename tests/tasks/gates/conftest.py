"""Gates are tried on the comparison that the report is tried on."""

from tests.tasks.reporting.conftest import (
    clean_results,
    measured_results,
    params,
    withheld_measured_results,
    withheld_results,
)

__all__ = ["clean_results", "measured_results", "params", "withheld_measured_results", "withheld_results"]
