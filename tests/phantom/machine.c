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

int phantom_driver_cuda(int newest) { return find_number("PHANTOM_DRIVER_CUDA", newest); }

int phantom_num_slices(void) { return find_number("PHANTOM_SLICES", -1); }

void phantom_uuid(char *text, size_t size, int place, int slice) {
    if (slice) snprintf(text, size, "MIG-00000000-0000-0000-0000-00000000%02x%02x", slice, place);
    else snprintf(text, size, "GPU-00000000-0000-0000-0000-0000000000%02x", place);
}

static int begins(const char *entry, int place, int slice) {
    char uuid[64];
    phantom_uuid(uuid, sizeof uuid, place, slice);
    return strlen(entry) > 4 && !strncmp(uuid, entry, strlen(entry));
}

// A card, and which of its slices; 0: all of it.
struct shown { int place, slice; };

static struct shown find_entry(const char *entry, int cards, int slices) {
    char *end;
    long place = strtol(entry, &end, 10);
    if (end != entry && !*end) return (struct shown){place < cards ? (int)place : -1, 0};
    for (int card = 0; card < cards; card++)
        for (int slice = 0; slice <= (slices > 0 ? slices : 0); slice++)
            if (begins(entry, card, slice)) return (struct shown){card, slice};
    return (struct shown){-1, 0};
}

// As CUDA reads CUDA_VISIBLE_DEVICES: numbers and beginnings of UUIDs, up to the first that is none. Of cards that are
// cut it shows a process one slice and nothing else: the first that is named, or the first of the first card.
static int list_visible(struct shown *shown) {
    const char *said = getenv("CUDA_VISIBLE_DEVICES");
    int cards = phantom_num_cards(), slices = phantom_num_slices(), num = 0;
    char text[512], *rest = text;
    snprintf(text, sizeof text, "%s", said ? said : "");
    for (char *entry; said && num < NUM_DEVICES && (entry = strsep(&rest, ",")); num++) {
        shown[num] = find_entry(entry, cards, slices);
        if (shown[num].place < 0) break;
    }
    for (; !said && num < cards; num++) shown[num] = (struct shown){num, 0};
    if (slices < 0 || !num) return num;
    if (!shown->slice) shown->slice = 1;
    return slices > 0;
}

int phantom_num_visible(void) {
    struct shown shown[NUM_DEVICES];
    return list_visible(shown);
}

static struct shown find_shown(int device) {
    struct shown shown[NUM_DEVICES];
    int num = list_visible(shown);
    return device >= 0 && device < num ? shown[device] : (struct shown){0, 0};
}
int phantom_place(int device) { return find_shown(device).place; }
int phantom_slice(int device) { return find_shown(device).slice; }

size_t phantom_part(size_t whole, int slice) { return slice ? whole / (MOST_SLICES + 1) : whole; }

void phantom_name(char *text, size_t size, int slice) {
    const struct card *card = phantom_card();
    size_t gigabytes = (phantom_part(card->board_memory, slice) + (1ul << 29)) >> 30;
    if (slice) snprintf(text, size, "%s MIG 1g.%zugb", card->name, gigabytes);
    else snprintf(text, size, "%s", card->name);
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
    if (!phantom_hold(device, (long)bytes)) return 0;
    long now = atomic_fetch_add(held, (long)bytes) + (long)bytes;
    for (long before = *top; before < now && !atomic_compare_exchange_weak(top, &before, now);) {}
    return 1;
}

void phantom_give(int device, size_t bytes) {
    phantom_hold(device, -(long)bytes);
    atomic_fetch_sub(&phantom_counts()[HELD_BYTES + device], (long)bytes);
}

void phantom_unanswered(const char *name) {
    fprintf(stderr, "phantom: %s was called, which tests/phantom/ has no answer to\n", name);
}
