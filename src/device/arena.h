// Scratch memory of one step: bump allocation, everything forgotten at once. The arena is sized before the first step
// by dry runs (dry_run.h), so that a step never allocates (a captured CUDA graph could not).
#pragma once

#include "base/math.h"
#include "device/device.h"

namespace volley {

// The alignment of memory from an arena. Copies of matrix rows use lines of 128 bytes: if x began in the middle of one,
// products of 128 rows took 7 to 12 % longer (docs/cuda-notes.md).
inline constexpr int64_t kArenaAlignment = 256;

// The bytes of an arena that a tensor of so many bytes takes.
constexpr int64_t arena_bytes(int64_t bytes) {
  return round_up(bytes, kArenaAlignment);
}

class Arena {
 public:
  explicit Arena(Buffer buffer)
      : buffer_(std::move(buffer)), begin_(static_cast<char*>(buffer_.data())), capacity_(buffer_.bytes()) {}
  // An arena of any size and without memory, for dry runs: its tensors must not be accessed.
  static Arena measuring();

  // Aligned to kArenaAlignment, from the buffer's begin on; contents undefined. Running out is a CHECK failure, because
  // dry runs sized the arena.
  TensorView take(DType dtype, std::initializer_list<int64_t> dims);

  // Frees everything taken after the mark.
  size_t mark() const { return used_; }
  void release(size_t mark) { used_ = mark; }

  size_t capacity() const { return capacity_; }
  size_t peak() const { return peak_; }

 private:
  Arena() = default;

  Buffer buffer_;
  char* begin_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
  size_t peak_ = 0;
};

// On leaving a scope, releases everything taken in it.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t mark_;
};

}  // namespace volley
