// NVML, as libnvidia-ml.so.1: what the stages ask before there is a rank. No header of it comes with the wheels.
#include "phantom.h"
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// A handle is the place from 1 on and, of a slice, 256 for each place of it.
enum { SLICE = 256 };
static int place_of(void *handle) { return (int)((uintptr_t)handle % SLICE - 1); }
static int slice_of(void *handle) { return (int)((uintptr_t)handle / SLICE); }

// PHANTOM_REFUSED=NAME:PLACE:ERROR: what the driver answers to one question of one card, in NVML's numbers.
static int refused(const char *question, int place) {
    const char *said = getenv("PHANTOM_REFUSED");
    char name[32];
    int which, error;
    if (!said || sscanf(said, "%31[^:]:%d:%d", name, &which, &error) != 3) return 0;
    return !strcmp(name, question) && which == place ? error : 0;
}

int nvmlInit_v2(void) { return phantom_num_cards() ? refused("Init", 0) : 9; } // 9: no driver
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return error == 9 ? "Driver Not Loaded" : "refused by the phantom"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "595.00.00"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = phantom_driver_cuda(CUDA_VERSION); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)phantom_num_cards(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(uintptr_t)(index + 1);
    return index < (unsigned)phantom_num_cards() ? refused("Handle", (int)index) : 2;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    unsigned domain, place;
    if (sscanf(bus, "%x:%x", &domain, &place) != 2) return 2;
    *handle = (void *)(uintptr_t)place;
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    phantom_uuid(text, size, place_of(handle), slice_of(handle));
    return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    phantom_name(text, size, slice_of(handle));
    return 0;
}
// What other processes hold is not known here.
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *found) {
    unsigned long long all = phantom_part(phantom_card()->board_memory, slice_of(handle));
    found[0] = all, found[1] = all, found[2] = 0;
    return refused("MemoryInfo", place_of(handle));
}
// What a driver tells of a card and of no slice of it: clocks, power, heat and load. 3: not supported.
static int of_card(void *handle) { return slice_of(handle) ? 3 : 0; }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *found) { found[0] = found[1] = 0; return of_card(handle); }
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    *milliwatts = (unsigned)phantom_card()->power_watts * 100;
    return of_card(handle);
}
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    *milliwatts = (unsigned)phantom_card()->power_watts * 1000;
    return of_card(handle);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *milliwatts) {
    return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = (unsigned long long)phantom_card()->power_watts / 10 * (unsigned long long)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
    return of_card(handle);
}
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) {
    (void)kind;
    *mhz = (unsigned)phantom_card()->clock_mhz;
    return of_card(handle);
}
int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *mhz) { return nvmlDeviceGetClockInfo(handle, kind, mhz); }
int nvmlDeviceGetTemperature(void *handle, int kind, unsigned *celsius) { (void)kind; *celsius = 40; return of_card(handle); }
int nvmlDeviceGetPerformanceState(void *handle, int *state) { *state = 0; return of_card(handle); }
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) { *reasons = 0; return of_card(handle); }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *num, void *found) {
    (void)handle, (void)found;
    *num = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *num, void *found) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, num, found);
}
// One PCIe switch, and peers that read each other's memory.
int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *level) { (void)one, (void)other; *level = 10; return 0; }
int nvmlDeviceGetP2PStatus(void *one, void *other, int kind, int *status) {
    (void)one, (void)other;
    *status = kind == 2 ? 5 : 0; // 2: NVLink
    return 0;
}
// Nor has a slice a compute capability of its own to tell. 2: no such handle, 6: not found.
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = phantom_card()->major, *minor = phantom_card()->minor;
    return of_card(handle);
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later) {
    *now = *later = phantom_num_slices() >= 0;
    return slice_of(handle) ? 2 : 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = MOST_SLICES; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    *slice = (void *)((uintptr_t)handle + SLICE * (index + 1));
    return (int)index < phantom_num_slices() ? 0 : 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *slice, void **handle) {
    *handle = (void *)((uintptr_t)slice % SLICE);
    return slice_of(slice) ? 0 : 2;
}

// No NVLink and no fabric: 3 is NVML's word for what a card does not have.
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, int *state) { (void)handle, (void)link, (void)state; return 3; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { (void)handle, (void)link, (void)type; return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *found) { (void)handle, (void)link, (void)found; return 3; }
int nvmlDeviceGetGpuFabricInfoV(void *handle, void *found) { (void)handle, (void)found; return 3; }
