// Preloaded into a process, this moves its wall clock by the seconds that the file WALL_CLOCK_FILE holds (64 bits),
// from one call to the next. Monotonic clocks stay, and so does the kernel: a wait until a time of the moved clock ends
// hours late or at once, as it does where a host's clock is set.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t* shift_s;

__attribute__((constructor)) static void map_shift(void) {
  const char* path = getenv("WALL_CLOCK_FILE");
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) abort();
  void* mapped = mmap(NULL, sizeof(*shift_s), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) abort();
  shift_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
  // Other libraries may ask before map_shift() has run.
  const int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  if (wall && shift_s) now->tv_sec += __atomic_load_n(shift_s, __ATOMIC_RELAXED);
  return 0;
}

int timespec_get(struct timespec* now, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
