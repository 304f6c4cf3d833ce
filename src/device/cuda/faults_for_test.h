// For tests of faults: stands between a program and the CUDA runtime, and lets one call go wrong. The linker puts it
// there (--wrap, in src/device/CMakeLists.txt). Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace volley::cuda {

enum class Fault {
  // A piece of work (kernel, graph, copy, memset, event, wait) is refused: the n-th alone, or all from the n-th on.
  kRefusedWork,
  kLostDevice,
  kNoMemory,  // the n-th allocation, of the GPU's or of pinned memory, is refused
  // A kernel in front of the n-th graph does it. The process can use its GPU no more.
  kIllegalAccess,
  kTrap,
  kHang,  // for kHangSeconds
};

inline constexpr int kHangSeconds = 30;

// From the next call on; n: 1 is the next one that the fault can meet. What was injected before is forgotten.
void inject(Fault fault, int64_t n);

int64_t calls();          // that the fault could meet, since inject()
std::string met();        // the first call that it met; empty: none yet
void inject_no_longer();  // calls go on to be counted

}  // namespace volley::cuda
