// Device memory of a replica on a GPU, beside common memory, for signals from the other replicas.
#pragma once

#include <cstdint>

#include "base/math.h"
#include "comm/row_exchange.h"
#include "device/arena.h"

namespace volley::comm {

struct ExchangeHeader {
  int64_t shifts[kMostGpuReplicas] = {};  // RowExchange::shifts()
  int32_t counts[kMostGpuReplicas] = {};  // RowExchange::counts(); replica r writes counts[r]
  uint32_t meets = 0;                     // meets that this replica has entered, and left
  uint32_t ticket = 0;                    // blocks of a kernel that have written their rows
  uint32_t gone = 0;                      // a kernel has seen that the exchange is aborted
  // The number of meets that replica r has entered, written by replica r. Each number has a cache line of its own.
  struct alignas(128) Come {
    uint32_t meets = 0;
  };
  Come come[kMostGpuReplicas];
};
// Common memory follows.
inline constexpr int64_t kExchangeHeaderBytes = round_up(int64_t{sizeof(ExchangeHeader)}, kArenaAlignment);

}  // namespace volley::comm
