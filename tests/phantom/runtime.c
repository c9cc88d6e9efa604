// The CUDA runtime, in front of libcudart: devices, streams, events. A kernel is counted and does nothing.
#define _GNU_SOURCE
#include "phantom.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static __thread int current;
static __thread cudaError_t last;

int phantom_device(void) { return current; }

int phantom_fail(int error) { return last = error; }
static cudaError_t fail(cudaError_t error) { return phantom_fail(error); }

// ------------------------------------------------------------------ devices
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 0;
    if (phantom_driver_cuda(CUDART_VERSION) / 1000 < CUDART_VERSION / 1000) return fail(cudaErrorInsufficientDriver);
    *count = phantom_num_visible();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= phantom_num_visible()) return fail(cudaErrorInvalidDevice);
    // Since CUDA 12 it makes the context, which takes memory there.
    phantom_touch(current = device);
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { cudaError_t error = last; last = cudaSuccess; return error; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
        : error == cudaErrorNotSupported ? "operation not supported"
        : error == cudaErrorInsufficientDriver ? "CUDA driver version is insufficient for CUDA runtime version"
        : error == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "refused by the phantom";
}
const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfPhantom";
}
cudaError_t cudaDriverGetVersion(int *version) { *version = phantom_driver_cuda(CUDART_VERSION); return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", phantom_place(device) + 1);
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = device != peer; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    const struct card *card = phantom_card();
    if (device < 0 || device >= phantom_num_visible()) return fail(cudaErrorInvalidDevice);
    memset(found, 0, sizeof *found);
    int slice = phantom_slice(device);
    phantom_name(found->name, sizeof found->name, slice);
    found->uuid.bytes[14] = (char)slice;
    found->uuid.bytes[15] = (char)phantom_place(device);
    found->pciBusID = phantom_place(device) + 1;
    found->major = card->major;
    found->minor = card->minor;
    found->totalGlobalMem = phantom_part(card->memory, slice);
    found->multiProcessorCount = (int)phantom_part((size_t)card->multiprocessors, slice);
    found->maxThreadsPerMultiProcessor = card->threads;
    found->sharedMemPerBlockOptin = (size_t)card->shared_bytes;
    found->sharedMemPerMultiprocessor = (size_t)card->shared_bytes + 1024;
    found->l2CacheSize = card->cache_bytes;
    found->memoryBusWidth = card->bus_bits;
    found->sharedMemPerBlock = 49152;
    found->reservedSharedMemPerBlock = 1024;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536;
    found->totalConstMem = 65536;
    found->warpSize = 32;
    found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 2147483647;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->maxBlocksPerMultiProcessor = 32;
    found->unifiedAddressing = found->canMapHostMemory = found->concurrentKernels = 1;
    found->cooperativeLaunch = found->memoryPoolsSupported = found->streamPrioritiesSupported = 1;
    found->asyncEngineCount = 2;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    const struct card *card = phantom_card();
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = card->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card->minor; break;
    case cudaDevAttrMultiProcessorCount:
        *value = (int)phantom_part((size_t)card->multiprocessors, phantom_slice(device));
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card->threads; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card->shared_bytes; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = card->shared_bytes + 1024; break;
    case cudaDevAttrL2CacheSize: *value = card->cache_bytes; break;
    case cudaDevAttrClockRate: *value = card->clock_mhz * 1000; break;
    case cudaDevAttrMemoryClockRate: *value = card->memory_clock_mhz * 1000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = card->bus_bits; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX: *value = 1024; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: *value = 65535; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    default: *value = 1;
    }
    return cudaSuccess;
}

// ------------------------------------------------------------------ streams and events, each of one device
static atomic_long num_streams;

static int stream_device(cudaStream_t stream) {
    uintptr_t handle = (uintptr_t)stream;
    return handle < 4096 ? current : (int)(handle >> 4 & 15);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    phantom_touch(current);
    *stream = (cudaStream_t)((uintptr_t)(++num_streams + 16) << 8 | (uintptr_t)current << 4);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { (void)stream; *priority = 0; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
    const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *num
) {
    (void)stream, (void)graph, (void)nodes, (void)edges;
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (num) *num = 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) { phantom_count(WAITS); return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { (void)stream; phantom_count(WAITS); return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { (void)event; phantom_count(WAITS); return cudaSuccess; }

struct event { int device; double at_ms; };

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    struct event *made = calloc(1, sizeof *made);
    made->device = current;
    *event = (cudaEvent_t)made;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    struct event *told = (struct event *)event;
    struct timespec now;
    (void)flags;
    if (told->device != stream_device(stream)) return fail(cudaErrorInvalidResourceHandle);
    clock_gettime(CLOCK_MONOTONIC, &now);
    told->at_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, 0); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    double earlier = ((struct event *)start)->at_ms, later = ((struct event *)end)->at_ms;
    if (!earlier || !later) return fail(cudaErrorInvalidResourceHandle);
    // The host's time, which no kernel took.
    *ms = later > earlier ? (float)(later - earlier) : 0.0f;
    if (*ms < 1e-3f) *ms = 1e-3f;
    return cudaSuccess;
}

// ------------------------------------------------------------------ kernels
static cudaError_t launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
    phantom_touch(current);
    phantom_count(LAUNCHES);
    if (stream_device(stream) != current) return fail(cudaErrorInvalidResourceHandle);
    size_t threads = (size_t)block.x * block.y * block.z;
    if (!grid.x || !grid.y || !grid.z || !threads || threads > 1024) return fail(cudaErrorInvalidConfiguration);
    if (shared_bytes > (size_t)phantom_card()->shared_bytes) return fail(cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    (void)kernel, (void)arguments;
    return launch(grid, block, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    (void)kernel, (void)arguments;
    return launch(grid, block, shared, stream);
}
// What nvcc makes of <<<>>>; in no header that every wheel has.
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    (void)kernel, (void)arguments;
    return launch(grid, block, shared, stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *asked, const void *kernel, void **arguments) {
    (void)kernel, (void)arguments;
    return launch(asked->gridDim, asked->blockDim, asked->dynamicSmemBytes, asked->stream);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *kernel) {
    const struct card *card = phantom_card();
    (void)kernel;
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    // Wheels have no code for 8.9 but that for 8.6, which runs there.
    found->binaryVersion = found->ptxVersion = card->major * 10 + (card->major == 8 && card->minor == 9 ? 6 : card->minor);
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    (void)kernel;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > phantom_card()->shared_bytes)
        return fail(cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *num, const void *kernel, int threads, size_t shared) {
    (void)kernel, (void)threads, (void)shared;
    *num = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *num, const void *kernel, int threads, size_t shared, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(num, kernel, threads, shared);
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **found, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult *result
) {
    (void)version, (void)flags;
    *found = dlsym(RTLD_DEFAULT, name);
    if (result) *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
