// Makes another GPU current for the calling thread during a scope. Errors show at the next call that matters.
#pragma once

#include <cuda_runtime_api.h>

namespace volley::cuda {

class OnGpu {
 public:
  explicit OnGpu(int gpu) {
    cudaGetDevice(&before_);
    cudaSetDevice(gpu);
  }
  ~OnGpu() { cudaSetDevice(before_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int before_ = 0;
};

}  // namespace volley::cuda
