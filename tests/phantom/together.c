// What all processes of the machine hold of its cards: in $PHANTOM_COUNTS/cards, which every one of them maps.
#define _GNU_SOURCE
#include "phantom.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Whole cards, then the first slice of each, and so on.
enum { NUM_PROCESSES = 1024, NUM_POOLS = NUM_DEVICES * (MOST_SLICES + 1) };
static struct process { atomic_int pid; atomic_long held[NUM_POOLS]; } alone[NUM_PROCESSES], *all = alone;
static struct process *own;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void open_table(void) {
    const char *folder = getenv("PHANTOM_COUNTS");
    if (folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/cards", folder);
        int file = open(path, O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, sizeof alone)) { perror(path); _exit(1); }
        all = mmap(0, sizeof alone, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
    }
    for (int i = 0; i < NUM_PROCESSES && !own; i++) {
        int nobody = 0;
        if (atomic_compare_exchange_strong(&all[i].pid, &nobody, (int)getpid())) own = &all[i];
    }
    if (!own) { fputs("phantom: too many processes\n", stderr); abort(); }
}

// What a process that has ended held is free again, be its end waited for by its parent or not.
static int has_ended(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 1;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'R';
    fclose(file);
    return state == 'Z' || state == 'X';
}
static long held_by_others(int pool) {
    long sum = 0;
    for (int i = 0; i < NUM_PROCESSES; i++) {
        long held = all[i].held[pool];
        if (!held || &all[i] == own) continue;
        if (!has_ended(all[i].pid)) { sum += held + (long)CONTEXT_BYTES; continue; }
        for (int other = 0; other < NUM_POOLS; other++) all[i].held[other] = 0;
        all[i].pid = 0;
    }
    return sum;
}

static int pool_of(int device) { return phantom_place(device) + NUM_DEVICES * phantom_slice(device); }

long phantom_free_bytes(int device) {
    int pool = pool_of(device);
    pthread_once(&opened, open_table);
    long whole = (long)phantom_part(phantom_card()->memory, phantom_slice(device));
    return whole - (long)CONTEXT_BYTES - own->held[pool] - held_by_others(pool);
}

int phantom_hold(int device, long bytes) {
    int pool = pool_of(device);
    pthread_once(&opened, open_table);
    // Two processes may both be refused where there was room for one of them, and never both be given it.
    atomic_fetch_add(&own->held[pool], bytes);
    if (bytes <= 0 || phantom_free_bytes(device) >= 0) return 1;
    atomic_fetch_sub(&own->held[pool], bytes);
    return 0;
}
