// For tests of faults: intercepts a program's calls of the CUDA runtime and makes one of them fail. The linker inserts
// it (--wrap, in src/device/CMakeLists.txt). Threads: any.
#pragma once

#include <cstdint>
#include <string>

namespace volley::cuda {

enum class Fault {
  // A piece of work (kernel, graph, copy, memset, event, wait) is refused: the n-th alone, or all from the n-th on.
  kRefusedWork,
  kLostDevice,
  kNoMemory,  // the n-th allocation, of the GPU's or of pinned memory, is refused
  // A kernel in front of the n-th graph fails. The process can no longer use its GPU.
  kIllegalAccess,
  kTrap,
  kHang,  // for kHangSeconds
};

inline constexpr int kHangSeconds = 30;

// Takes effect from the next call on; n = 1 is the next call that the fault can affect. Replaces earlier injections.
void inject(Fault fault, int64_t n);

int64_t calls();          // calls that the fault could affect, since inject()
std::string met();        // the first call that it affected; empty: none yet
void inject_no_longer();  // calls are still counted

}  // namespace volley::cuda
