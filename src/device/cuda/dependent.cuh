// Programmatic dependent launch, for kernels that run on every GPU: on those older than sm_90 both do nothing, because
// there kernels of a stream do not overlap.
#pragma once

namespace volley::cuda {

// Lets the next kernel's blocks start as soon as there is room for them.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when all kernels before this one have ended and their writes are visible. Before that, a kernel must not read
// memory that they write, nor write memory that they read.
__device__ inline void wait_for_predecessors() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace volley::cuda
