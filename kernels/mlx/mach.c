// mlx-rs seeds its random state from mach_approximate_time, which only Apple's libc has.
// A coarse monotonic clock in nanoseconds serves the same purpose.
#include <stdint.h>
#include <time.h>

uint64_t mach_approximate_time(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}
