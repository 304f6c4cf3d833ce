// A proposer that drafts nothing and hands the target's rows on, to a program that trains a drafter: token, slot,
// position and features of each row, through a ring in a file of shared memory. Its folder holds config.json:
//
//   {"architectures": ["FeatureStream"], "layers": [1, 8, 14], "ring": "/dev/shm/features"}
//
// The reader makes the file (train/volley_train/stream.py): a page of int64 numbers (RingHead), then the rows, each
// rounded up to 16 bytes: int32 token, slot, position, 0, then the features of the layers in their order, as the target
// computes them. While the ring is full the engine soon stands still; a reader that has ended is an error. Rows that a
// prefix cache has are not computed, so none are handed on: turn it off.
#pragma once

#include <atomic>
#include <cstdint>

#include "decode/proposer_spec.h"

namespace volley::decode::features {

inline constexpr int64_t kRingMagic = 0x31474e4952594c56;  // "VLYRING1"
inline constexpr int64_t kRingPage = 4096;

struct RingHead {
  int64_t magic = 0;
  int64_t bytes = 0;                // of the rows' memory, behind this page
  int64_t reader = 0;               // its process
  int64_t row_bytes = 0;            // the engine says so at its start, and the next two
  int64_t columns = 0;              // values of a row's features
  int64_t value_bytes = 0;          // 2: bf16, 4: fp32
  std::atomic<int64_t> written{0};  // rows
  std::atomic<int64_t> read{0};     // rows
  std::atomic<int64_t> writer{0};   // the engine's process; one ring has one
};

// Streams features of `layers`, each `hidden` values of `dtype`, into the ring at `path`. most_drafts, most_rows: of
// a pass, of which the second is at least 1; two passes' rows may wait in host memory before a step does. kNotFound,
// kDataLoss and kFailedPrecondition say what is wrong with the ring. The device must outlive it.
Result<std::unique_ptr<Proposer>> make_proposer(Device& device, std::vector<int32_t> layers, int64_t hidden,
                                                DType dtype, const std::string& path, int32_t most_drafts,
                                                int32_t most_rows);

// Errors as decode::read_proposer().
Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir);

}  // namespace volley::decode::features
