// The few instructions of sm_90a that the kernels use and CUDA C++ has no name for: transaction barriers, the bulk copy
// engine and clusters (products.cuh has the matrix unit). One function an
// instruction; the semantics are those of the PTX ISA manual, chapter 9.7.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace volley::hopper {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- Transaction barriers (mbarrier) ---

// A barrier in shared memory, by a pointer or by its address there.
struct Barrier {
  uint32_t address;
  __device__ Barrier(uint32_t of_shared) : address(of_shared) {}
  __device__ Barrier(uint64_t* barrier) : address(shared_address(barrier)) {}
};

__device__ inline void barrier_init(Barrier barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of the cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_expect(Barrier barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address), "r"(bytes) : "memory");
}

__device__ inline void barrier_arrive(Barrier barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
}

// On the barrier at the same place in block `rank` of the cluster.
__device__ inline void barrier_arrive_at(Barrier barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier.address),
      "r"(rank)
      : "memory");
}

__device__ inline void barrier_wait(Barrier barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier.address),
      "r"(parity)
      : "memory");
}

// Whether a wait would end at once.
__device__ inline bool barrier_ready(Barrier barrier, uint32_t parity) {
  uint32_t ready;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(ready)
      : "r"(barrier.address), "r"(parity)
      : "memory");
  return ready != 0;
}

// This thread arrives when all 16-byte copies (cp.async) that it has issued are done.
__device__ inline void barrier_arrive_after_copies(Barrier barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

// Makes shared-memory writes of threads, which this one has synchronised with, visible to the matrix unit and the copy
// engine.
__device__ inline void shared_writes_to_units() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Memory that other blocks write ---

// Reads *p with acquire: writes that another thread made before it released this value are visible afterwards.
__device__ inline uint64_t load_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}

// Adds to *p with release: threads that acquire the new value see all writes that this thread made, or acquired,
// before.
__device__ inline void add_release(uint64_t* p, uint64_t x) {
  asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

// Sets bits of *p, or clears those that are not in `bits`. Both return the old value, with acquire and release.
__device__ inline uint64_t fetch_or(uint64_t* p, uint64_t bits) {
  uint64_t v;
  asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;" : "=l"(v) : "l"(p), "l"(bits) : "memory");
  return v;
}
__device__ inline uint64_t fetch_and(uint64_t* p, uint64_t bits) {
  uint64_t v;
  asm volatile("atom.acq_rel.gpu.global.and.b64 %0, [%1], %2;" : "=l"(v) : "l"(p), "l"(bits) : "memory");
  return v;
}

// --- Bulk copies, global to shared memory of this block ---

// How the L2 cache treats lines that a copy loads.
__device__ inline uint64_t l2_evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t l2_evict_last() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t l2_evict_normal() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes` contiguous bytes; both addresses and the size are multiples of 16.
__device__ inline void bulk_copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same, to the same place in both blocks of a cluster of two, each of which expects its bytes.
__device__ inline void bulk_copy_to_both(void* to, const void* from, uint32_t bytes, uint64_t* barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4, %5;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3)), "l"(policy)
      : "memory");
}

// The box of a two-dimensional tensor map whose corner is (column, row); elements outside the tensor read as zero.
__device__ inline void tensor_copy(void* to, const CUtensorMap* map, int column, int row, uint64_t* barrier,
                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same, to the same place in both blocks of a cluster of two, each of which expects its bytes.
__device__ inline void tensor_copy_to_both(void* to, const CUtensorMap* map, int column, int row, uint64_t* barrier,
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(static_cast<uint16_t>(3)), "l"(policy)
      : "memory");
}

__device__ inline void prefetch_to_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// --- Registers ---

// The number of registers that each thread of this warpgroup may use from here on; all its warps call it. A multiple of
// 8.
template <int kCount>
__device__ inline void registers_grow_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void registers_shrink_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// --- Clusters ---

// Threads that have ended count as arrived. Writes of a thread before it arrived are visible to all threads after they
// waited.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same for a thread whose writes no other thread reads: this arrival waits for no memory.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// The address, in the cluster's shared memory, of the place of `p` in block `rank`; and the value there.
__device__ inline uint32_t shared_address_in(const void* p, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
__device__ inline float4 load_shared_in(uint32_t address) {  // no instruction of this thread stores there
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}
// Sends 16 bytes to an address in the cluster; the barrier there counts them when they have arrived.
__device__ inline void send_shared_in(uint32_t address, float4 v, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ inline void store_shared_in(uint32_t address, float2 v) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

}  // namespace volley::hopper
