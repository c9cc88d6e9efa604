// What all parts of the phantom share: the card that the environment asks for, and what is counted.
#ifndef PHANTOM_H
#define PHANTOM_H
#include <stdatomic.h>
#include <stddef.h>

struct card {
    const char *key, *name;
    int major, minor;
    size_t memory, board_memory;
    int multiprocessors, threads, shared_bytes, cache_bytes, clock_mhz, memory_clock_mhz, bus_bits, power_watts;
};
#include "cards.h"

// The card of PHANTOM_CARD. A name that is not known ends the process.
const struct card *phantom_card(void);
// How many there are in the machine (PHANTOM_CARDS), and how many of them this process sees (CUDA_VISIBLE_DEVICES).
int phantom_num_cards(void);
int phantom_num_visible(void);
// The newest CUDA that its driver runs (PHANTOM_DRIVER_CUDA; 12040 is 12.4): without, that of the headers.
int phantom_driver_cuda(int newest);
// How many slices each card is cut into (PHANTOM_SLICES); -1: MIG is off.
enum { MOST_SLICES = 7 };
int phantom_num_slices(void);
// Which card of the machine the process's device is, and which slice of it, from 1 on; 0: all of it.
int phantom_place(int device);
int phantom_slice(int device);
// What a slice has of what the card has, and how card and slice are called.
size_t phantom_part(size_t whole, int slice);
void phantom_uuid(char *text, size_t size, int place, int slice);
void phantom_name(char *text, size_t size, int slice);

// The device that the calling thread has chosen, and the error that it is told of when it asks.
int phantom_device(void);
int phantom_fail(int error);

// Numbers of this process: in $PHANTOM_COUNTS/<pid>, where others can read them whatever becomes of it.
atomic_long *phantom_counts(void);
void phantom_count(int what);
void phantom_touch(int device);

// Memory of a device, at an address of its own. 0: there is too little of it.
int phantom_take(int device, size_t bytes);
void phantom_give(int device, size_t bytes);
// Of the card or slice of it, which all processes share: what is free, and 1 if so many bytes more (or fewer) can be held.
long phantom_free_bytes(int device);
int phantom_hold(int device, long bytes);

// What a program reads of a device's memory, and that something has arrived there.
void phantom_read(void *to, const void *from, size_t bytes);
void phantom_note(const void *to, size_t bytes, size_t each);

// Say on stderr that a call has no answer.
void phantom_unanswered(const char *name);
#endif
