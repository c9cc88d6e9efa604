"""What tests of the machine share."""

import pynvml
import pytest


@pytest.fixture
def no_driver() -> str:
    """What NVML itself says where there is no NVIDIA driver; skips where there is one."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    pynvml.nvmlShutdown()
    pytest.skip("this machine has an NVIDIA driver")
