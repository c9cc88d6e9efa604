// NCCL between processes of one machine. Ranks meet in shared memory: what is small really goes over; of what is large
// only that all ranks do the same. A rank whose call is not the others' ends the process and says so.
#define _GNU_SOURCE
#include "phantom.h"
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SLOT_BYTES = 1 << 20, RING_BYTES = 1 << 18, MOST_RANKS = NUM_DEVICES };

struct call { char name[16]; size_t count; int type, op, root; };

// What one rank has sent to another, which has read less of it. Offsets only grow.
struct ring { atomic_size_t written, read; char bytes[RING_BYTES]; };

struct meeting {
    struct ring rings[MOST_RANKS][MOST_RANKS];
    atomic_int is_ready;
    pthread_barrier_t barrier;
    int places[MOST_RANKS];
    struct call calls[MOST_RANKS];
    char slots[MOST_RANKS][SLOT_BYTES];
};

struct ncclComm { int rank, num_ranks, device; struct meeting *meeting; };

ncclResult_t ncclGetVersion(int *version) { *version = NCCL_VERSION_CODE; return ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t error) { return error ? "refused by the phantom" : "no error"; }
const char *ncclGetLastError(ncclComm_t comm) { (void)comm; return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static atomic_int num;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(id->internal, sizeof id->internal, "/phantom-%d-%d-%lx", (int)getpid(), ++num, (long)now.tv_nsec);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int num_ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    (void)config;
    if (num_ranks > MOST_RANKS) return ncclInvalidArgument;
    int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof(struct meeting))) { perror("phantom: shared memory"); return ncclSystemError; }
    struct meeting *meeting = mmap(0, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (meeting == MAP_FAILED) { perror("phantom: shared memory"); return ncclSystemError; }
    if (rank == 0) {
        pthread_barrierattr_t shared;
        pthread_barrierattr_init(&shared);
        pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&meeting->barrier, &shared, (unsigned)num_ranks);
        atomic_store(&meeting->is_ready, 1);
    }
    while (!atomic_load(&meeting->is_ready)) usleep(100);
    meeting->places[rank] = phantom_place(phantom_device());
    pthread_barrier_wait(&meeting->barrier);
    if (rank == 0) shm_unlink(id.internal);
    // No two ranks on one card, nor on slices of one, which NCCL has from 2.31 on, and as an experiment.
    for (int other = 0; other < num_ranks; other++)
        if (other != rank && meeting->places[other] == meeting->places[rank]) return ncclInvalidUsage;
    phantom_touch(phantom_device());
    struct ncclComm *made = malloc(sizeof *made);
    *made = (struct ncclComm){rank, num_ranks, phantom_device(), meeting};
    *comm = made;
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int num_ranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(comm, num_ranks, id, rank, 0);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int num_ranks, int rank, int num_ids, ncclUniqueId *ids, ncclConfig_t *config) {
    (void)num_ids;
    return ncclCommInitRankConfig(comm, num_ranks, ids[0], rank, config);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) { *count = comm->num_ranks; return ncclSuccess; }
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) { *device = comm->device; return ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { (void)comm; *error = ncclSuccess; return ncclSuccess; }
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type, ncclScalarResidence_t where, ncclComm_t comm) {
    (void)scalar, (void)type, (void)where, (void)comm;
    *op = ncclSum;
    return ncclSuccess;
}

static size_t size_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}

// Each rank shows what it calls and what it sends, and sees that of all others.
static void meet(struct ncclComm *comm, struct call call, const void *sent, size_t bytes) {
    struct meeting *meeting = comm->meeting;
    phantom_count(COLLECTIVES);
    phantom_touch(comm->device);
    meeting->calls[comm->rank] = call;
    if (bytes <= SLOT_BYTES) phantom_read(meeting->slots[comm->rank], sent, bytes);
    pthread_barrier_wait(&meeting->barrier);
    for (int rank = 0; rank < comm->num_ranks; rank++) {
        struct call *other = &meeting->calls[rank];
        if (!memcmp(other, &call, sizeof call)) continue;
        fprintf(
            stderr, "phantom: rank %d calls %s of %zu (type %d, op %d, root %d), rank %d %s of %zu (type %d, op %d, root %d)\n",
            comm->rank, call.name, call.count, call.type, call.op, call.root,
            rank, other->name, other->count, other->type, other->op, other->root
        );
        abort();
    }
}
static void part(struct ncclComm *comm, const void *to, size_t bytes, ncclDataType_t type) {
    pthread_barrier_wait(&comm->meeting->barrier);
    phantom_note(to, bytes, size_of(type));
}

static struct call make_call(const char *name, size_t count, ncclDataType_t type, int op, int root) {
    struct call call;
    memset(&call, 0, sizeof call);
    snprintf(call.name, sizeof call.name, "%s", name);
    call.count = count, call.type = type, call.op = op, call.root = root;
    return call;
}

#define REDUCE(kind) \
    for (size_t i = 0; i < count; i++) { \
        kind found = ((kind *)slots[0])[first + i]; \
        for (int rank = 1; rank < num; rank++) { \
            kind other = ((kind *)slots[rank])[first + i]; \
            found = op == ncclMax ? (other > found ? other : found) : op == ncclMin ? (other < found ? other : found) \
                : op == ncclProd ? found * other : found + other; \
        } \
        ((kind *)to)[i] = op == ncclAvg ? found / (kind)num : found; \
    }

// In the order of the ranks, as no NCCL promises. 16-bit numbers, which C has none of, are the first rank's.
static void reduce(char (*slots)[SLOT_BYTES], int num, void *to, size_t first, size_t count, ncclDataType_t type, ncclRedOp_t op) {
    switch (type) {
    case ncclFloat32: REDUCE(float) break;
    case ncclFloat64: REDUCE(double) break;
    case ncclInt32: REDUCE(int32_t) break;
    case ncclInt64: REDUCE(int64_t) break;
    case ncclUint8: REDUCE(uint8_t) break;
    default: memcpy(to, slots[0] + first * size_of(type), count * size_of(type));
    }
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type);
    meet(comm, make_call("all-reduce", count, type, op, 0), from, bytes);
    if (bytes <= SLOT_BYTES) reduce(comm->meeting->slots, comm->num_ranks, to, 0, count, type, op);
    part(comm, to, bytes, type);
    return ncclSuccess;
}
ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type);
    meet(comm, make_call("reduce", count, type, op, root), from, bytes);
    if (bytes <= SLOT_BYTES && comm->rank == root) reduce(comm->meeting->slots, comm->num_ranks, to, 0, count, type, op);
    part(comm, to, bytes, type);
    return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type) * (size_t)comm->num_ranks;
    meet(comm, make_call("reduce-scatter", count, type, op, 0), from, bytes);
    if (bytes <= SLOT_BYTES) reduce(comm->meeting->slots, comm->num_ranks, to, count * (size_t)comm->rank, count, type, op);
    part(comm, to, count * size_of(type), type);
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type);
    meet(comm, make_call("all-gather", count, type, 0, 0), from, bytes);
    for (int rank = 0; rank < comm->num_ranks && bytes <= SLOT_BYTES; rank++)
        memcpy((char *)to + (size_t)rank * bytes, comm->meeting->slots[rank], bytes);
    part(comm, to, bytes * (size_t)comm->num_ranks, type);
    return ncclSuccess;
}
ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type), all = bytes * (size_t)comm->num_ranks;
    meet(comm, make_call("all-to-all", count, type, 0, 0), from, all);
    for (int rank = 0; rank < comm->num_ranks && all <= SLOT_BYTES; rank++)
        memcpy((char *)to + (size_t)rank * bytes, comm->meeting->slots[rank] + (size_t)comm->rank * bytes, bytes);
    part(comm, to, all, type);
    return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    size_t bytes = count * size_of(type);
    meet(comm, make_call("broadcast", count, type, 0, root), from, bytes);
    if (bytes <= SLOT_BYTES) memcpy(to, comm->meeting->slots[root], bytes);
    part(comm, to, bytes, type);
    return ncclSuccess;
}
ncclResult_t ncclBcast(void *data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

// A message waits for nobody while it fits beside those that were not read yet; NCCL's would not on the host either.
static void pass_on(struct ring *ring, const char *from, char *to, size_t bytes) {
    while (bytes) {
        size_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
        size_t offset = (from ? written : read) % RING_BYTES, there = from ? RING_BYTES - (written - read) : written - read;
        size_t some = there < RING_BYTES - offset ? there : RING_BYTES - offset;
        if (some > bytes) some = bytes;
        if (!some) { usleep(20); continue; }
        if (from) {
            memcpy(ring->bytes + offset, from, some), from += some;
            atomic_store(&ring->written, written + some);
        } else {
            memcpy(to, ring->bytes + offset, some), to += some;
            atomic_store(&ring->read, read + some);
        }
        bytes -= some;
    }
}
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    phantom_touch(comm->device);
    pass_on(&comm->meeting->rings[comm->rank][peer], from, 0, count * size_of(type));
    return ncclSuccess;
}
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    phantom_touch(comm->device);
    pass_on(&comm->meeting->rings[peer][comm->rank], 0, to, count * size_of(type));
    phantom_note(to, count * size_of(type), size_of(type));
    return ncclSuccess;
}
