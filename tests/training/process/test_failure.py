"""What is taken for a lack of memory, in the words of all who may say it."""

import pytest

from training.process.failure import is_out_of_memory, tells_out_of_memory

OUT_OF_MEMORY = [
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 14.56 GiB of which 1.2 GiB is free",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate",
    "[Errno 12] Cannot allocate memory",
    "std::bad_alloc",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 10485760 bytes",
]
SOMETHING_ELSE = [
    "CUDA error: device-side assert triggered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
    "out of resource: shared memory, Required: 147456, Hardware limit: 101376",
    "cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built.",
    "conv.py:553: UserWarning: Plan failed with an OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    "/dev/shm/nccl-x4: No space left on device",
]


@pytest.mark.parametrize("words", OUT_OF_MEMORY)
def test_a_lack_of_memory_is_told_in_every_spelling(words):
    assert is_out_of_memory(RuntimeError(words))
    # Among the last words of a rank, whose log has more.
    assert tells_out_of_memory(f"Traceback (most recent call last):\n  ...\nRuntimeError: {words}\n{SOMETHING_ELSE[4]}")


@pytest.mark.parametrize("words", SOMETHING_ELSE)
def test_what_smaller_micro_batches_do_not_mend_is_no_lack_of_memory(words):
    assert not is_out_of_memory(RuntimeError(words))
    assert not tells_out_of_memory(f"{words}\nRuntimeError: the CUDA context is gone")


def test_a_lack_of_memory_of_python_itself_is_one():
    assert is_out_of_memory(MemoryError())
