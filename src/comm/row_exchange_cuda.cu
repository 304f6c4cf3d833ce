// Rows of replicas on GPUs of this machine that reach one another's memory (row_exchange.h). Plain loads and stores
// alone: no NVLink multicast.
//
// A meet: each replica writes the number of its meets into all headers, behind all that it wrote before, and looks into
// its own header until the others' are there. Numbers are kept on the device, so a replayed graph goes on counting. Who
// is ahead by one has left a higher number, which says as much.
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/exchange_layout.h"
#include "comm/peer_shared_cuda.h"
#include "device/cuda/dependent.cuh"
#include "device/cuda/launch.h"
#include "device/cuda/on_gpu.h"

namespace volley::comm {
namespace {

constexpr PeerWords kReplicas = {"Replica", "--enable-expert-parallel with --data-parallel-size",
                                 "leave --enable-expert-parallel out"};
constexpr int kBringThreads = 512, kMeetThreads = 32;

struct MeetArgs {
  ExchangeHeader* header;   // this replica's
  const uint32_t* aborted;  // host memory: not 0 once the exchange is
  int replica, replicas;
};

// The same place in another replica's memory.
template <typename T>
__device__ T* shifted(T* here, int64_t shift) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(here) + shift);
}

__device__ uint32_t acquired(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}
__device__ void release(uint32_t* to, uint32_t v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(v) : "memory");
}

// Looks until the replica has come to so many meets. It may be far behind, so there is no limit to it but abort. The
// host's memory is far away: it is asked seldom, and the first to learn tells those that come later.
__device__ void await(const MeetArgs& args, int replica, uint32_t meets) {
  volatile uint32_t* gone = &args.header->gone;
  if (*gone != 0) return;  // nobody waits any more, and results mean nothing
  const uint32_t* come = &args.header->come[replica].meets;
  for (uint32_t looks = 1; static_cast<int32_t>(acquired(come) - meets) < 0; ++looks) {
    if (looks % 1024 != 0) continue;
    if (looks % (16 * 1024) == 0 && *static_cast<const volatile uint32_t*>(args.aborted) != 0) *gone = 1;
    if (*gone != 0) return;
    if (looks > 64 * 1024) __nanosleep(200);
  }
}

// By all threads of one block, of at least kMostGpuReplicas. What this block and the kernels before it wrote is seen by
// all that have come to this meet, and theirs by what runs after it.
__device__ void meet(const MeetArgs& args) {
  const uint32_t meets = *static_cast<volatile uint32_t*>(&args.header->meets) + 1;
  __syncthreads();  // all have read it
  const int other = static_cast<int>(threadIdx.x);
  if (other < args.replicas && other != args.replica) {
    __threadfence_system();
    release(shifted(&args.header->come[args.replica].meets, args.header->shifts[other]), meets);
    await(args, other, meets);
  }
  __syncthreads();
  if (threadIdx.x == 0) args.header->meets = meets;
}

// The next kernel starts when the meet is over: before, its blocks could fill the GPU of another replica, which this
// one waits for (in tests).
__global__ void __launch_bounds__(kMeetThreads) meet_kernel(const __grid_constant__ MeetArgs args) {
  cuda::wait_for_predecessors();
  meet(args);
  cuda::launch_dependents();
}

struct BringArgs {
  MeetArgs meet;
  int32_t rows;
  struct Part {
    const char* from;
    char* to;  // in this replica's memory
    int64_t bytes;
    int unit;  // what a thread moves at once: 16, 4 or 2 bytes
  };
  Part parts[RowExchange::kMostCopies];
};

template <typename T>
__device__ void copy_to_all(const BringArgs::Part& part, const int64_t* shifts, int replicas) {
  const auto* from = reinterpret_cast<const T*>(part.from);
  auto* to = reinterpret_cast<T*>(part.to);
  const int64_t n = part.bytes / int64_t{sizeof(T)}, step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += step) {
    const T v = from[i];
    for (int r = 0; r < replicas; ++r) *shifted(to + i, shifts[r]) = v;
  }
}

// Blocks end when they have written; the last one meets the other replicas for all of them.
__global__ void __launch_bounds__(kBringThreads) bring_kernel(const __grid_constant__ BringArgs args) {
  __shared__ int64_t shifts[kMostGpuReplicas];
  __shared__ bool last;
  cuda::wait_for_predecessors();
  ExchangeHeader* const header = args.meet.header;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < args.meet.replicas) shifts[thread] = header->shifts[thread];
  __syncthreads();
  for (const BringArgs::Part& part : args.parts) {
    if (part.unit == 16) copy_to_all<uint4>(part, shifts, args.meet.replicas);
    if (part.unit == 4) copy_to_all<uint32_t>(part, shifts, args.meet.replicas);
    if (part.unit == 2) copy_to_all<uint16_t>(part, shifts, args.meet.replicas);
  }
  if (blockIdx.x == 0 && thread < args.meet.replicas) {
    *shifted(&header->counts[args.meet.replica], shifts[thread]) = args.rows;
  }
  __syncthreads();
  if (thread == 0) {
    __threadfence_system();  // what the block wrote, before its ticket
    last = atomicAdd(&header->ticket, 1u) == gridDim.x - 1;
    __threadfence_system();  // what all blocks wrote, before the meet
  }
  __syncthreads();
  if (!last) return;
  if (thread == 0) header->ticket = 0;
  meet(args.meet);
  cuda::launch_dependents();
}

class CudaRowExchange final : public RowExchange {
 public:
  CudaRowExchange(std::shared_ptr<PeerShared> shared, int replica, int64_t most_rows, int64_t bytes)
      : RowExchange(replica, shared->members()), shared_(std::move(shared)), most_rows_(most_rows), bytes_(bytes) {}
  ~CudaRowExchange() override { abort(); }

  Status prepare(Device& device) override;
  Rows begin(Stream& stream, int64_t rows) override;
  void bring(Stream& stream, std::span<const Copy> copies) override;
  void meet(Stream& stream) override;
  const int32_t* counts() const override { return header()->counts; }
  const int64_t* shifts() const override { return header()->shifts; }
  void check() const override { shared_->check(); }
  void abort() override { shared_->leave(replica()); }

 private:
  ExchangeHeader* header() const { return reinterpret_cast<ExchangeHeader*>(shared_->memory(replica())); }
  MeetArgs meet_args() const { return {header(), shared_->aborted(), replica(), replicas()}; }
  void tell_places() const;

  const std::shared_ptr<PeerShared> shared_;
  const int64_t most_rows_, bytes_;
  int64_t rows_ = 0;  // of the layer
};

// Replicas may come one after the other, and record graphs before the last has come: so where the others' memory lies
// is not among what kernels are given. The last one tells all.
Status CudaRowExchange::prepare(Device& device) {
  static std::mutex mutex;  // several may come at once
  const std::lock_guard lock(mutex);
  VOLLEY_RETURN_IF_ERROR(shared_->prepare(replica(), device, kExchangeHeaderBytes + bytes_));
  char* const common = shared_->memory(replica()) + kExchangeHeaderBytes;
  set_common(Arena(Buffer(common, static_cast<size_t>(bytes_), [](void*, size_t) {})));
  VOLLEY_RETURN_IF_ERROR(shared_->watch(replica(), device.stream()));
  for (int i = 0; i < replicas(); ++i) {
    if (!shared_->prepared(i)) return {};
  }
  tell_places();
  return {};
}

void CudaRowExchange::tell_places() const {
  for (int i = 0; i < replicas(); ++i) {
    const cuda::OnGpu on(shared_->gpu(i));
    int64_t shifts[kMostGpuReplicas] = {};
    for (int r = 0; r < replicas(); ++r) shifts[r] = shared_->memory(r) - shared_->memory(i);
    auto* const to = reinterpret_cast<ExchangeHeader*>(shared_->memory(i))->shifts;
    VOLLEY_CUDA_CHECK(cudaMemcpy(to, shifts, sizeof(shifts), cudaMemcpyHostToDevice));
    VOLLEY_CUDA_CHECK(cudaStreamSynchronize(nullptr));  // the replicas' own streams do not wait for the default one
  }
}

RowExchange::Rows CudaRowExchange::begin(Stream& stream, int64_t rows) {
  VOLLEY_CHECK_LE(rows, most_rows_);
  if (!stream.dry()) check();
  rows_ = rows;
  const int64_t all = replicas() * most_rows_;
  return {all, replica() * most_rows_, all, replicas() * std::max<int64_t>(rows, 1)};
}

void CudaRowExchange::bring(Stream& stream, std::span<const Copy> copies) {
  VOLLEY_CHECK_LE(copies.size(), kMostCopies);
  BringArgs args = {};
  args.meet = meet_args();
  args.rows = static_cast<int32_t>(rows_);
  int64_t moves = 1;  // of threads
  for (size_t i = 0; i < copies.size(); ++i) {
    const Copy& copy = copies[i];
    VOLLEY_CHECK(copy.from.dtype == copy.to.dtype);
    VOLLEY_CHECK_EQ(copy.from.count(), copy.to.count());
    BringArgs::Part& part = args.parts[i];
    part = {static_cast<const char*>(copy.from.data), static_cast<char*>(copy.to.data), copy.from.bytes(), 2};
    const auto fits = [&](int unit) {
      return (reinterpret_cast<uintptr_t>(part.from) | reinterpret_cast<uintptr_t>(part.to) |
              static_cast<uintptr_t>(part.bytes)) %
                 static_cast<uintptr_t>(unit) ==
             0;
    };
    part.unit = fits(16) ? 16 : fits(4) ? 4 : 2;
    VOLLEY_CHECK(fits(2));
    moves += divide_up(part.bytes, part.unit);
  }
  // Each of several replicas on a GPU leaves room for the others.
  const int most = std::max(1, stream.gpu().multiprocessors / (shared_->sharing(replica()) > 1 ? 4 : 1));
  cuda::Launch how;
  how.grid = dim3(static_cast<unsigned>(std::min<int64_t>(most, divide_up(moves, kBringThreads))));
  how.block = dim3(kBringThreads);
  how.early = true;
  cuda::launch(bring_kernel, how, stream, args);
}

void CudaRowExchange::meet(Stream& stream) {
  cuda::Launch how;
  how.grid = dim3(1);
  how.block = dim3(kMeetThreads);
  how.early = true;
  cuda::launch(meet_kernel, how, stream, meet_args());
}

}  // namespace

Result<RowExchanges> make_cuda_row_exchanges(const std::vector<int>& gpus, int64_t most_rows, int64_t bytes) {
  const auto replicas = static_cast<int>(gpus.size());
  VOLLEY_CHECK(replicas >= 1 && replicas <= kMostGpuReplicas && most_rows >= 1 && bytes >= 1);
  VOLLEY_ASSIGN(const std::shared_ptr<PeerShared> shared, PeerShared::make(gpus, kReplicas));
  RowExchanges exchanges;
  for (int i = 0; i < replicas; ++i) {
    exchanges.push_back(std::make_unique<CudaRowExchange>(shared, i, most_rows, bytes));
  }
  return Result<RowExchanges>(std::move(exchanges));
}

}  // namespace volley::comm
