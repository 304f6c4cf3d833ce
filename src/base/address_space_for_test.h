// For tests in processes of their own: a limit of the process's address space.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace volley {

// In bytes. Ends the process with status 11 where it cannot be read.
inline size_t address_space() {
  size_t pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) std::_Exit(11);
  std::fclose(file);
  return pages * 4096;
}

// Ends the process with status 10 where that is not allowed.
inline void limit_address_space(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(10);
}

}  // namespace volley
