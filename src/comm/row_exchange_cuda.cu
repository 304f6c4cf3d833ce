// Rows of replicas on GPUs of this machine that reach one another's memory (row_exchange.h). Plain loads and stores
// alone: no NVLink multicast.
//
// A meet: after all its earlier writes, each replica writes the number of its meets into all headers, and polls its own
// header until the others' numbers arrive. The device keeps the numbers, so a replayed graph continues the count. A
// replica that is one meet ahead has left a higher number, which also ends the wait.
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
  const uint32_t* aborted;  // host memory: not 0 once the exchange is aborted
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

// Polls until the replica has entered so many meets. It may be far behind, so only an abort limits the wait. The host's
// memory is far away: it is read seldom, and the first thread to see an abort tells later ones.
__device__ void await(const MeetArgs& args, int replica, uint32_t meets) {
  volatile uint32_t* gone = &args.header->gone;
  if (*gone != 0) return;  // aborted: no thread waits any more, and results are invalid
  const uint32_t* come = &args.header->come[replica].meets;
  for (uint32_t looks = 1; static_cast<int32_t>(acquired(come) - meets) < 0; ++looks) {
    if (looks % 1024 != 0) continue;
    if (looks % (16 * 1024) == 0 && *static_cast<const volatile uint32_t*>(args.aborted) != 0) *gone = 1;
    if (*gone != 0) return;
    if (looks > 64 * 1024) __nanosleep(200);
  }
}

// Called by all threads of one block, of at least kMostGpuReplicas. Earlier writes of this block and of the kernels
// before it are visible to all replicas that entered this meet, and theirs to the code after it.
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

// The next kernel starts only after the meet: before that, its blocks could fill another replica's GPU, which this one
// waits for (in tests).
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
    int unit;  // bytes that a thread moves at once: 16, 4 or 2
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

// Blocks end when they have written; the last one meets the other replicas on behalf of all.
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
    __threadfence_system();  // the block's writes, before its ticket
    last = atomicAdd(&header->ticket, 1u) == gridDim.x - 1;
    __threadfence_system();  // all blocks' writes, before the meet
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
  int64_t rows_ = 0;  // rows of the layer
};

// Replicas may prepare one after the other, and record graphs before the last has prepared, so the addresses of the
// others' memory are not kernel arguments. The last one writes them for all.
Status CudaRowExchange::prepare(Device& device) {
  static std::mutex mutex;  // several may arrive at once
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
  int64_t moves = 1;  // moves that threads share
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
  cuda::launch(bring_kernel,
               {.grid = cuda::dims(std::min<int64_t>(most, divide_up(moves, kBringThreads))),
                .block = dim3(kBringThreads),
                .early = true},
               stream, args);
}

void CudaRowExchange::meet(Stream& stream) {
  cuda::launch(meet_kernel, {.grid = dim3(1), .block = dim3(kMeetThreads), .early = true}, stream, meet_args());
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
