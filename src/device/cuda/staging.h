// Uploads weights to a GPU through two pinned pieces of host memory. While the copy engine reads one, several threads
// fill the other: a single thread that copies out of a mapped file takes half as long again.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

#include "device/cpu/thread_pool.h"
#include "device/cuda/launch.h"
#include "device/device.h"

namespace volley {

// One thread at a time.
class Staging {
 public:
  Staging() = default;
  ~Staging() {
    for (Piece& piece : pieces_) {
      if (piece.free != nullptr) cudaEventDestroy(piece.free);
      if (piece.memory != nullptr) cudaFreeHost(piece.memory);
    }
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  cudaError_t init() {
    for (Piece& piece : pieces_) {
      cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(&piece.memory), kPieceBytes);
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&piece.free, cudaEventDisableTiming);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  // Returns when all of `from` has been read; the last pieces may still be on their way in the stream's order.
  void upload(cudaStream_t stream, char* to, const char* from, size_t bytes) {
    for (size_t done = 0; done < bytes; done += kPieceBytes) {
      Piece& piece = pieces_[next_ ^= 1];
      const size_t n = std::min(kPieceBytes, bytes - done);
      VOLLEY_CUDA_CHECK(cudaEventSynchronize(piece.free));  // returns at once for an event that was never recorded
      fill(piece.memory, from + done, n);
      VOLLEY_CUDA_CHECK(cudaMemcpyAsync(to + done, piece.memory, n, cudaMemcpyHostToDevice, stream));
      VOLLEY_CUDA_CHECK(cudaEventRecord(piece.free, stream));
    }
  }

 private:
  static constexpr size_t kPieceBytes = size_t{16} << 20;
  static constexpr size_t kShareBytes = size_t{1} << 20;  // share of one thread at a time
  static constexpr int kThreads = 8;

  struct Piece {
    char* memory = nullptr;
    cudaEvent_t free = nullptr;
  };

  void fill(char* to, const char* from, size_t bytes) {
    if (readers_ == nullptr) readers_ = make_readers();
    readers_->parallel_for(static_cast<int64_t>((bytes + kShareBytes - 1) / kShareBytes), [&](int64_t share, int) {
      const size_t begin = static_cast<size_t>(share) * kShareBytes;
      std::memcpy(to + begin, from + begin, std::min(kShareBytes, bytes - begin));
    });
  }

  // If the system gives no more threads, the caller works alone.
  static std::unique_ptr<ThreadPool> make_readers() {
    try {
      return std::make_unique<ThreadPool>(std::min(kThreads, usable_cores()));
    } catch (const std::system_error&) {
      return std::make_unique<ThreadPool>(1);
    }
  }

  Piece pieces_[2];
  int next_ = 0;
  std::unique_ptr<ThreadPool> readers_;
};

}  // namespace volley
