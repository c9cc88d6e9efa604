// What torch asks of cuSOLVER, and of cuBLAS for many small matrices, where it makes columns orthogonal.
#include "phantom.h"
#include <cublas_v2.h>
#include <cusolverDn.h>
#include <stdlib.h>

enum { SCRATCH = 4096 };

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t *handle) {
    phantom_touch(phantom_device());
    *handle = calloc(1, 64);
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateParams(cusolverDnParams_t *made) {
    *made = calloc(1, 64);
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnDestroyParams(cusolverDnParams_t made) { free(made); return CUSOLVER_STATUS_SUCCESS; }
cusolverStatus_t cusolverDnXgeqrf_bufferSize(
    cusolverDnHandle_t handle, cusolverDnParams_t params, int64_t m, int64_t n, cudaDataType type, const void *a,
    int64_t lda, cudaDataType type_of_tau, const void *tau, cudaDataType compute, size_t *on_device, size_t *on_host
) {
    (void)handle, (void)params, (void)m, (void)n, (void)type, (void)a, (void)lda, (void)type_of_tau, (void)tau;
    (void)compute;
    *on_device = SCRATCH, *on_host = 0;
    return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSorgqr_bufferSize(
    cusolverDnHandle_t handle, int m, int n, int k, const float *a, int lda, const float *tau, int *num
) {
    (void)handle, (void)m, (void)n, (void)k, (void)a, (void)lda, (void)tau;
    *num = SCRATCH;
    return CUSOLVER_STATUS_SUCCESS;
}
// The host reads at once whether the arguments were right.
cublasStatus_t cublasSgeqrfBatched(
    cublasHandle_t handle, int m, int n, float *const a[], int lda, float *const tau[], int *info, int num
) {
    (void)handle, (void)m, (void)n, (void)a, (void)lda, (void)tau, (void)num;
    phantom_touch(phantom_device());
    phantom_count(LAUNCHES);
    *info = 0;
    return CUBLAS_STATUS_SUCCESS;
}
