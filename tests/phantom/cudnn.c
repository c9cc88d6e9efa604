// cuDNN as far as torch goes: convolutions, batch norm and fused attention. Every graph of operations gets one engine
// and one plan without a workspace, which does nothing.
#include "phantom.h"
#include <cudnn.h>
#include <stdlib.h>
#include <string.h>

struct cudnnContext { cudaStream_t stream; };

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType which, int *value) {
    *value = which == MAJOR_VERSION ? CUDNN_MAJOR : which == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
const char *cudnnGetErrorString(cudnnStatus_t status) { return status ? "refused by the phantom" : "no error"; }
void cudnnGetLastErrorString(char *text, size_t size) { if (size) *text = 0; }
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    phantom_touch(phantom_device());
    *handle = calloc(1, sizeof **handle);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

#define DESCRIPTOR(kind) \
    cudnnStatus_t cudnnCreate##kind(cudnn##kind##_t *made) { *made = calloc(1, 64); return CUDNN_STATUS_SUCCESS; } \
    cudnnStatus_t cudnnDestroy##kind(cudnn##kind##_t made) { free(made); return CUDNN_STATUS_SUCCESS; }
DESCRIPTOR(TensorDescriptor)
DESCRIPTOR(FilterDescriptor)
DESCRIPTOR(ActivationDescriptor)

cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t scale,
    const cudnnActivationDescriptor_t activation, size_t *bytes
) {
    (void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)scale, (void)activation;
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnTensorDescriptor_t x,
    const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy, const cudnnTensorDescriptor_t dz,
    const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t scale, const cudnnActivationDescriptor_t activation,
    size_t *bytes
) {
    (void)handle, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale, (void)activation;
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(
    cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops, const cudnnActivationDescriptor_t activation,
    const cudnnTensorDescriptor_t x, size_t *bytes
) {
    (void)handle, (void)mode, (void)ops, (void)activation, (void)x;
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

// ------------------------------------------------------------------ graphs of operations
struct descriptor { cudnnBackendDescriptorType_t type; };

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *made) {
    struct descriptor *descriptor = calloc(1, sizeof *descriptor);
    descriptor->type = type;
    *made = descriptor;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t made) { free(made); return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t made) {
    if (((struct descriptor *)made)->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) phantom_count(PLANS);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(
    const cudnnBackendDescriptor_t made, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
    int64_t asked, int64_t *num, void *values
) {
    (void)made;
    // One engine, which has no knobs and no notes; every number is 0. A descriptor of an answer stays the caller's.
    int has_none = name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES || type == CUDNN_TYPE_NUMERICAL_NOTE || type == CUDNN_TYPE_BEHAVIOR_NOTE;
    if (num) *num = !has_none;
    if (has_none || asked < 1 || !values) return CUDNN_STATUS_SUCCESS;
    if (type == CUDNN_TYPE_INT64) *(int64_t *)values = 0;
    else if (type == CUDNN_TYPE_INT32) *(int32_t *)values = 0;
    return CUDNN_STATUS_SUCCESS;
}
