// The CUDA driver, as libcuda.so.1: what torch, Triton and NVIDIA's own libraries ask it beside the runtime.
#define _GNU_SOURCE
#include "phantom.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *phantom_reserve(size_t bytes);
void phantom_keep(void *start, size_t bytes, int device);

CUresult cuInit(unsigned flags) { (void)flags; return phantom_num_visible() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE; }
CUresult cuDriverGetVersion(int *version) { *version = phantom_driver_cuda(CUDA_VERSION); return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = phantom_num_visible(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    phantom_name(name, (size_t)size, phantom_slice(device));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[14] = (char)phantom_slice(device);
    uuid->bytes[15] = (char)phantom_place(device);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    *bytes = phantom_part(phantom_card()->memory, phantom_slice(device));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    // Both number their attributes alike.
    cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "refused by the phantom";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) { return cuGetErrorString(error, text); }

// ------------------------------------------------------------------ contexts: the primary one of each device, no other
static CUcontext context_of(int device) { return (CUcontext)(uintptr_t)(16 + device); }

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = phantom_counts()[TOUCHED + device] > 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    phantom_touch(device);
    *context = context_of(device);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) { *context = context_of(phantom_device()); return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = phantom_device(); return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) cudaSetDevice((int)(uintptr_t)context - 16);
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxGetCurrent(context); }
CUresult cuCtxSynchronize(void) { phantom_count(WAITS); return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { (void)stream; phantom_count(WAITS); return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    struct cudaPointerAttributes found;
    cudaPointerGetAttributes(&found, (void *)address);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = context_of(found.device); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = found.device; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = found.type == cudaMemoryTypeDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    default: *(CUdeviceptr *)value = address;
    }
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ modules and kernels
static atomic_long num_handles;

static CUresult make(void **handle) { *handle = (void *)(uintptr_t)((++num_handles + 4096) * 16); return CUDA_SUCCESS; }

CUresult cuModuleLoad(CUmodule *module, const char *name) { (void)name; return make((void **)module); }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)image; return make((void **)module); }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned num, CUjit_option *options, void **values) {
    (void)image, (void)num, (void)options, (void)values;
    return make((void **)module);
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module, (void)name;
    return make((void **)function);
}
CUresult cuLibraryLoadData(
    CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned num,
    CUlibraryOption *library_options, void **library_values, unsigned library_num
) {
    (void)code, (void)options, (void)values, (void)num, (void)library_options, (void)library_values, (void)library_num;
    return make((void **)library);
}
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    (void)library, (void)name;
    return make((void **)kernel);
}
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) { *function = (CUfunction)kernel; return CUDA_SUCCESS; }
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    int is_too_much = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value > phantom_card()->shared_bytes;
    return is_too_much ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *num, CUfunction function, int threads, size_t shared) {
    (void)function, (void)threads, (void)shared;
    *num = 2;
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int *num, CUfunction function, const CUlaunchConfig *config) {
    (void)function, (void)config;
    *num = 4;
    return CUDA_SUCCESS;
}
static CUresult launch(void) {
    phantom_touch(phantom_device());
    phantom_count(LAUNCHES);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(
    CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
    CUstream stream, void **arguments, void **extra
) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
    (void)stream, (void)arguments, (void)extra;
    return launch();
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    (void)config, (void)function, (void)arguments, (void)extra;
    return launch();
}

// ------------------------------------------------------------------ memory in pieces: `expandable_segments`
struct piece { size_t bytes; int device; };

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *asked, CUmemAllocationGranularity_flags flags) {
    (void)asked, (void)flags;
    *bytes = 2ul << 20;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    void *start = phantom_reserve(bytes);
    if (!start) return CUDA_ERROR_OUT_OF_MEMORY;
    phantom_keep(start, bytes, phantom_device());
    *address = (CUdeviceptr)start;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) { munmap((void *)address, bytes); return CUDA_SUCCESS; }
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *asked, unsigned long long flags) {
    (void)flags;
    if (!phantom_take(asked->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct piece *made = malloc(sizeof *made);
    *made = (struct piece){bytes, asked->location.id};
    *handle = (CUmemGenericAllocationHandle)made;
    phantom_count(DEVICE_ALLOCATIONS);
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct piece *piece = (struct piece *)handle;
    phantom_give(piece->device, piece->bytes);
    free(piece);
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    madvise((void *)address, bytes, MADV_DONTNEED);
    return CUDA_SUCCESS;
}
