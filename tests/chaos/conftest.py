"""The finished comparison that others copy is what a killed one has to come to."""

from tests.integration.conftest import finished

__all__ = ["finished"]
