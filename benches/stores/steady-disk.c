// Simulates a disk of known speed, by LD_PRELOAD: a sync takes SYNC_MICROS microseconds, regardless
// of the machine's disk. Nothing is synced.
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static int sync_for_a_while(void) {
    const char *micros = getenv("SYNC_MICROS");
    long left = micros ? atol(micros) : 0;
    struct timespec pause = {left / 1000000, left % 1000000 * 1000};
    // A signal interrupts the sleep.
    while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
    }
    return 0;
}

int fsync(int fd) {
    (void)fd;
    return sync_for_a_while();
}

int fdatasync(int fd) {
    (void)fd;
    return sync_for_a_while();
}
