// The machine: which cards it has, what is counted of a process, and how much of a card's memory it holds.
#define _GNU_SOURCE
#include "phantom.h"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int find_number(const char *name, int otherwise) {
    const char *said = getenv(name);
    return said ? atoi(said) : otherwise;
}

const struct card *phantom_card(void) {
    const char *asked = getenv("PHANTOM_CARD");
    size_t num = sizeof CARDS / sizeof *CARDS;
    for (size_t i = 0; i < num; i++)
        if (asked && !strcmp(asked, CARDS[i].key)) return &CARDS[i];
    fprintf(stderr, "phantom: PHANTOM_CARD=%s; allowed:", asked ? asked : "");
    for (size_t i = 0; i < num; i++) fprintf(stderr, " %s", CARDS[i].key);
    fputc('\n', stderr);
    _exit(1);
}

int phantom_num_cards(void) {
    int num = find_number("PHANTOM_CARDS", 1);
    return num < 0 ? 0 : num > NUM_DEVICES ? NUM_DEVICES : num;
}

// As CUDA reads CUDA_VISIBLE_DEVICES: numbers and beginnings of UUIDs, up to the first that is none.
static int list_visible(int *places) {
    const char *said = getenv("CUDA_VISIBLE_DEVICES");
    int all = phantom_num_cards(), num = 0;
    if (!said) {
        for (; num < all; num++) places[num] = num;
        return num;
    }
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", said);
    for (char *entry; num < NUM_DEVICES && (entry = strsep(&rest, ",")); num++) {
        char uuid[64], *end;
        long place = strtol(entry, &end, 10);
        if (end == entry || *end) {
            place = all;
            for (int i = 0; i < all; i++) {
                snprintf(uuid, sizeof uuid, "GPU-00000000-0000-0000-0000-0000000000%02x", i);
                if (strlen(entry) > 4 && !strncmp(uuid, entry, strlen(entry))) { place = i; break; }
            }
        }
        if (place < 0 || place >= all) break;
        places[num] = (int)place;
    }
    return num;
}

int phantom_driver_cuda(int newest) { return find_number("PHANTOM_DRIVER_CUDA", newest); }

int phantom_num_slices(void) { return find_number("PHANTOM_SLICES", -1); }

int phantom_num_visible(void) {
    int places[NUM_DEVICES], num = list_visible(places), slices = phantom_num_slices();
    // Of cards that are cut, CUDA shows a process one slice.
    return slices < 0 ? num : slices && num;
}

int phantom_place(int device) {
    int places[NUM_DEVICES], num = list_visible(places);
    return device >= 0 && device < num ? places[device] : 0;
}

// What waits for a number that no kernel writes may wait for ever, and where that is several processes deep nobody sees
// it: each ends itself, and says so, PHANTOM_SECONDS after it has asked for a card.
static void end_late(int number) {
    static const char said[] = "phantom: this process has had a card for longer than PHANTOM_SECONDS\n";
    (void)number;
    if (write(2, said, sizeof said - 1) < 0) _exit(1);
    _exit(124);
}
static void limit_time(void) {
    int seconds = find_number("PHANTOM_SECONDS", 0);
    if (seconds <= 0) return;
    signal(SIGALRM, end_late);
    alarm((unsigned)seconds);
}

atomic_long *phantom_counts(void) {
    static _Atomic(atomic_long *) counts;
    static atomic_flag opening = ATOMIC_FLAG_INIT;
    atomic_long *found = atomic_load(&counts);
    if (found) return found;
    while (atomic_flag_test_and_set(&opening)) usleep(10);
    if (!(found = atomic_load(&counts))) {
        const char *folder = getenv("PHANTOM_COUNTS");
        char path[4096];
        size_t size = NUM_COUNTED * sizeof(atomic_long);
        int file = -1;
        if (folder) {
            snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
            file = open(path, O_RDWR | O_CREAT, 0600);
            if (file < 0 || ftruncate(file, (off_t)size)) { perror(path); _exit(1); }
        }
        found = mmap(0, size, PROT_READ | PROT_WRITE, file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        limit_time();
        atomic_store(&counts, found);
    }
    atomic_flag_clear(&opening);
    return found;
}

void phantom_count(int what) { phantom_counts()[what]++; }

void phantom_touch(int device) {
    if (device >= 0 && device < NUM_DEVICES) phantom_counts()[TOUCHED + device]++;
}

int phantom_take(int device, size_t bytes) {
    atomic_long *counts = phantom_counts(), *held = &counts[HELD_BYTES + device], *top = &counts[HIGHEST_BYTES + device];
    phantom_touch(device);
    if (!phantom_hold(phantom_place(device), (long)bytes)) return 0;
    long now = atomic_fetch_add(held, (long)bytes) + (long)bytes;
    for (long before = *top; before < now && !atomic_compare_exchange_weak(top, &before, now);) {}
    return 1;
}

void phantom_give(int device, size_t bytes) {
    phantom_hold(phantom_place(device), -(long)bytes);
    atomic_fetch_sub(&phantom_counts()[HELD_BYTES + device], (long)bytes);
}

void phantom_unanswered(const char *name) {
    fprintf(stderr, "phantom: %s was called, which tests/phantom/ has no answer to\n", name);
}
