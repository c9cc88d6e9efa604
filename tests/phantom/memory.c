// Memory of the CUDA runtime: address space that is never filled, and copies of what is small.
#define _GNU_SOURCE
#include "phantom.h"
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static cudaError_t fail(cudaError_t error) { return phantom_fail(error); }

static struct piece { char *start; size_t bytes; int device; } pieces[65536]; // device -1: pinned memory of the host
static int num_pieces;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const int OF_HOST = -1, OF_NOBODY = -2;

static int owner(const void *address) {
    int found = OF_NOBODY;
    pthread_mutex_lock(&lock);
    for (int i = num_pieces - 1; i >= 0 && found == OF_NOBODY; i--)
        if ((char *)address >= pieces[i].start && (char *)address < pieces[i].start + pieces[i].bytes)
            found = pieces[i].device;
    pthread_mutex_unlock(&lock);
    return found;
}
void phantom_keep(void *start, size_t bytes, int device) {
    pthread_mutex_lock(&lock);
    if (num_pieces == sizeof pieces / sizeof *pieces) { fputs("phantom: too many allocations\n", stderr); abort(); }
    pieces[num_pieces++] = (struct piece){start, bytes, device};
    pthread_mutex_unlock(&lock);
}
struct piece phantom_drop(void *start) {
    struct piece found = {0, 0, OF_NOBODY};
    pthread_mutex_lock(&lock);
    for (int i = num_pieces - 1; i >= 0; i--)
        if (start && pieces[i].start == start) {
            found = pieces[i];
            pieces[i] = pieces[--num_pieces];
            break;
        }
    pthread_mutex_unlock(&lock);
    return found;
}
// Address space that takes memory only where it is written to; on a boundary of 2 MiB, as torch's allocator expects.
void *phantom_reserve(size_t bytes) {
    const size_t step = 2ul << 20;
    char *start = mmap(0, bytes + step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return 0;
    char *at = (char *)(((uintptr_t)start + step - 1) & ~(step - 1));
    if (at > start) munmap(start, (size_t)(at - start));
    munmap(at + bytes, (size_t)(start + step - at));
    return at;
}
static size_t round_up(size_t bytes) { return ((bytes ? bytes : 1) + 4095) & ~4095ul; }

cudaError_t cudaMalloc(void **address, size_t bytes) {
    bytes = round_up(bytes);
    phantom_count(DEVICE_ALLOCATIONS);
    if (!phantom_take(phantom_device(), bytes)) return fail(cudaErrorMemoryAllocation);
    if (!(*address = phantom_reserve(bytes))) return fail(cudaErrorMemoryAllocation);
    phantom_keep(*address, bytes, phantom_device());
    return cudaSuccess;
}
cudaError_t cudaFree(void *address) {
    struct piece piece = phantom_drop(address);
    if (piece.device >= 0) {
        phantom_give(piece.device, piece.bytes);
        munmap(piece.start, piece.bytes);
    }
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    phantom_count(HOST_ALLOCATIONS);
    // Pinning goes through the context of the device at hand.
    phantom_touch(phantom_device());
    if (posix_memalign(address, 4096, round_up(bytes))) return fail(cudaErrorMemoryAllocation);
    phantom_keep(*address, round_up(bytes), OF_HOST);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void *address) { free(phantom_drop(address).start); return cudaSuccess; }
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
    (void)flags;
    phantom_keep(address, bytes, OF_HOST);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *address) { phantom_drop(address); return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *address) {
    int whose = owner(address);
    memset(found, 0, sizeof *found);
    found->type = whose >= 0 ? cudaMemoryTypeDevice : whose == OF_HOST ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    found->device = whose >= 0 ? whose : phantom_device();
    if (whose != OF_NOBODY) found->devicePointer = (void *)address;
    if (whose < 0) found->hostPointer = (void *)address;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    phantom_touch(phantom_device());
    *total = phantom_part(phantom_card()->memory, phantom_slice(phantom_device()));
    long free = phantom_free_bytes(phantom_device());
    *free_bytes = free > 0 ? (size_t)free : 0;
    return cudaSuccess;
}

// ------------------------------------------------------------------ copies
// What is small really goes over, so that flags, sizes and tiny weights arrive. Large pieces would fill memory for
// numbers that nothing computes with.
static const size_t SMALL = 1ul << 20;

// A label that is none, -100, does not: memory is handed on without being written to, and whoever reads it as a loss
// would find NaN there.
static void drop_negative(uint64_t *words, size_t num) {
    for (size_t i = 0; i < num; i++)
        if (words[i] >> 8 == UINT64_MAX >> 8) words[i] = 0;
}

// A number that stands alone, such as a flag, is what a program goes by. A kernel would have written it; what lies in its
// memory depends on what torch had there before, and differs between ranks. So unless it arrived as such it is 0, and of
// one byte true: what generates text goes on until a flag says that it has ended. With PHANTOM_LONE_NUMBERS that is 0, too.
// torch's pieces begin at multiples of 512 bytes.
enum { ALONE = 8, NUM_ARRIVALS = 1 << 16 };
static struct { uintptr_t start; size_t bytes, each; } arrivals[NUM_ARRIVALS];

void phantom_note(const void *to, size_t bytes, size_t each) {
    size_t place = (uintptr_t)to / 512 % NUM_ARRIVALS;
    pthread_mutex_lock(&lock);
    arrivals[place].start = (uintptr_t)to, arrivals[place].bytes = bytes, arrivals[place].each = each;
    pthread_mutex_unlock(&lock);
}
static int has_arrived(const void *from, size_t bytes) {
    if (bytes > ALONE) return 1;
    uintptr_t at = (uintptr_t)from;
    pthread_mutex_lock(&lock);
    uintptr_t start = arrivals[at / 512 % NUM_ARRIVALS].start;
    size_t there = arrivals[at / 512 % NUM_ARRIVALS].bytes, each = arrivals[at / 512 % NUM_ARRIVALS].each;
    pthread_mutex_unlock(&lock);
    if (!start) return 0;
    // One of the numbers that a collective has gathered from the ranks may go on alone, but none of a bucket of gradients:
    // a number that lies where one was is another tensor's, to which torch has handed the memory on.
    int is_one = bytes == each && there <= NUM_DEVICES * each && at >= start && at + bytes <= start + there;
    return is_one || (start == at && there == bytes);
}
void phantom_read(void *to, const void *from, size_t bytes) {
    if (owner(from) < 0 || has_arrived(from, bytes)) {
        memcpy(to, from, bytes);
        return;
    }
    memset(to, 0, bytes);
    if (bytes == 1) *(char *)to = !getenv("PHANTOM_LONE_NUMBERS");
}
static void copy(void *to, const void *from, size_t bytes) {
    int is_to_device = owner(to) >= 0;
    if (is_to_device && bytes > SMALL) return;
    phantom_read(to, from, bytes);
    if (!is_to_device) return;
    if (!((uintptr_t)to & 7)) drop_negative(to, bytes / 8);
    phantom_note(to, bytes, bytes);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    (void)kind;
    phantom_count(WAITS);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind, (void)stream;
    // Into or out of memory that is not pinned, the host is held up.
    if (owner(to) == OF_NOBODY || owner(from) == OF_NOBODY) phantom_count(WAITS);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream) {
    (void)stream;
    phantom_touch(to_device), phantom_touch(from_device);
    copy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    if (bytes <= SMALL) memset(to, value, bytes), phantom_note(to, bytes, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    return cudaMemset(to, value, bytes);
}
