// Groups whose ranks are GPUs of several processes. NCCL moves floats, and kernels of ours add them: NCCL's own sums
// have an order of their own. All work is in the order of the rank's stream, and can be part of recorded graphs.
#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "comm/comm.h"
#include "comm/gpu_claim.h"
#include "comm/nccl_kernels.cuh"
#include "comm/nccl_state.h"
#include "comm/rank_dispatch.h"
#include "device/cuda/launch.h"
#include "device/cuda/on_gpu.h"

namespace volley::comm {
namespace {

constexpr std::chrono::seconds kForTheId(60);  // for the process of rank 0 to arrive
constexpr std::chrono::microseconds kBetweenLooks(20);

// The host runs at most twice this many unrecorded NCCL calls ahead of the GPU. While a rank is gone its work piles up,
// and a launch that finds the driver's queue full waits inside NCCL, which then cannot be aborted. A queue has room for
// a thousand launches, some ten of which go with a call.
constexpr int64_t kCallsOfAMark = 16;

// Freed with the last rank of the process.
struct Shared {
  Shared(std::shared_ptr<NcclState> of, const NcclUniqueId& group, std::unique_ptr<GpuClaim> gpus)
      : state(std::move(of)), id(group), claim(std::move(gpus)) {}
  ~Shared() { state->finish(); }

  const std::shared_ptr<NcclState> state;
  const NcclUniqueId id;
  const std::unique_ptr<GpuClaim> claim;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Shared> shared, int rank, int64_t in_parts_bytes)
      : shared_(std::move(shared)), rank_(rank), in_parts_bytes_(in_parts_bytes) {}
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int ranks() const override { return state().ranks(); }
  Status prepare(Device& device) override;
  void add_sum(Stream& stream, TensorView partial, TensorView x) override;
  void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) override;
  void check() const override { state().check(rank_); }
  void abort() override { state().abort(rank_); }

 private:
  NcclState& state() const { return *shared_->state; }
  void warm_up(cudaStream_t stream);
  void stay_near(cudaStream_t stream);
  template <typename Query>
  void await(const Query& query) const;
  void all_gather(cudaStream_t stream, const float* mine, float* all, int64_t of_each);
  template <typename Length>
  void exchange_parts(cudaStream_t stream, const float* from, float* received, int64_t part, const Length& length);
  template <int kRanks, int V>
  void add(Stream& stream, const float* partial, float* x, int64_t count);
  template <int kRanks, int V>
  void add_in_parts(Stream& stream, const float* partial, float* x, int64_t count);

  const std::shared_ptr<Shared> shared_;
  const int rank_;
  const int64_t in_parts_bytes_;
  float* buffer_ = nullptr;  // [kNcclFloats]; owned by the state
  std::array<cudaEvent_t, 2> marks_ = {};
  int64_t calls_ = 0;
};

NcclCommunicator::~NcclCommunicator() {
  abort();
  for (cudaEvent_t mark : marks_) {
    if (mark != nullptr) cudaEventDestroy(mark);
  }
}

Status NcclCommunicator::prepare(Device& device) {
  const cuda::OnGpu on(state().gpu(rank_));
  const cudaStream_t stream = cuda::native(device.stream());
  VOLLEY_ASSIGN(Buffer memory, device.allocate(kNcclBufferBytes));
  buffer_ = state().keep(rank_, std::move(memory));
  for (cudaEvent_t& mark : marks_) VOLLEY_CUDA_CHECK(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
  VOLLEY_RETURN_IF_ERROR(state().watch(rank_));
  VOLLEY_RETURN_IF_ERROR(state().join(rank_, shared_->id));
  warm_up(stream);
  return {};
}

// NCCL connects ranks, and allocates memory for the connection, at the first send of each size class. During recording,
// or while other ranks' kernels wait, this would be too late. So each class is used once here, one call after the
// other.
void NcclCommunicator::warm_up(cudaStream_t stream) {
  const auto done = [this, stream] { await([stream] { return cudaStreamQuery(stream); }); };
  const int64_t most = kNcclFloats / ranks() / 4 * 4;
  for (int64_t n = 4;; n = std::min(4 * n, most)) {
    all_gather(stream, buffer_ + rank_ * n, buffer_, n);
    done();
    if (n == most) break;
  }
  for (const int64_t part : {int64_t{4}, most / 8 * 4}) {
    exchange_parts(stream, buffer_, buffer_ + ranks() * part, part, [part](int) { return part; });
    done();
  }
}

// Polls until NCCL is no longer busy, or a rank is gone.
template <typename Query>
void NcclCommunicator::await(const Query& query) const {
  cudaError_t e = query();
  for (; e == cudaErrorNotReady; e = query()) {
    state().throw_if_gone();
    std::this_thread::sleep_for(kBetweenLooks);
  }
  VOLLEY_CUDA_CHECK(e);
}

void NcclCommunicator::stay_near(cudaStream_t stream) {
  cudaStreamCaptureStatus recording = cudaStreamCaptureStatusNone;
  VOLLEY_CUDA_CHECK(cudaStreamIsCapturing(stream, &recording));
  if (recording != cudaStreamCaptureStatusNone || ++calls_ % kCallsOfAMark != 0) return;
  const cudaEvent_t mark = marks_[static_cast<size_t>(calls_ / kCallsOfAMark) % marks_.size()];
  await([mark] { return cudaEventQuery(mark); });  // returns at once if it was never set
  VOLLEY_CUDA_CHECK(cudaEventRecord(mark, stream));
}

void NcclCommunicator::all_gather(cudaStream_t stream, const float* mine, float* all, int64_t of_each) {
  stay_near(stream);
  state().call(rank_, [&](NcclComm* comm) {
    return state().api().all_gather(mine, all, static_cast<size_t>(of_each), NcclType::kFloat, comm, stream);
  });
}

// Rank r gets all ranks' from[r * part, r * part + length(r)); received[r * part, ...) is rank r's data for this one. A
// rank's own part stays in place.
template <typename Length>
void NcclCommunicator::exchange_parts(cudaStream_t stream, const float* from, float* received, int64_t part,
                                      const Length& length) {
  stay_near(stream);
  state().call(rank_, [&](NcclComm* comm) {
    const NcclApi& api = state().api();
    NcclResult result = api.group_start();
    if (result != NcclResult::kSuccess) return result;
    const auto own = static_cast<size_t>(length(rank_));
    for (int i = 1; i < ranks() && result == NcclResult::kSuccess; ++i) {
      const int to = (rank_ + i) % ranks(), back = (rank_ + ranks() - i) % ranks();
      const auto theirs = static_cast<size_t>(length(to));
      if (theirs > 0) result = api.send(from + to * part, theirs, NcclType::kFloat, to, comm, stream);
      if (own == 0 || result != NcclResult::kSuccess) continue;
      result = api.receive(received + back * part, own, NcclType::kFloat, back, comm, stream);
    }
    const NcclResult ended = api.group_end();
    return result == NcclResult::kSuccess ? ended : result;
  });
}

cuda::Launch grid_for(const Stream& stream, int64_t packs) {
  constexpr int64_t kBlocksEach = 4;  // blocks on each multiprocessor: enough to keep its memory busy
  cuda::Launch how;
  const int64_t blocks = divide_up(packs, nccl::kThreads);
  how.grid = dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kBlocksEach * stream.gpu().multiprocessors)));
  how.block = dim3(nccl::kThreads);
  return how;
}

// Sends all addends to all ranks.
template <int kRanks, int V>
void NcclCommunicator::add(Stream& stream, const float* partial, float* x, int64_t count) {
  all_gather(cuda::native(stream), partial, buffer_, count);
  cuda::launch(nccl::add_gathered_kernel<kRanks, V>, grid_for(stream, count / V), stream, buffer_, x,
               static_cast<int>(count));
}

// The buffer holds the addends of the rank's own part, by rank, followed by all sums.
template <int kRanks, int V>
void NcclCommunicator::add_in_parts(Stream& stream, const float* partial, float* x, int64_t count) {
  const cudaStream_t native = cuda::native(stream);
  const int64_t part = SumCut::part(count, kRanks), own = rank_ * part;
  VOLLEY_CHECK_LE(2 * kRanks * part, kNcclFloats);
  float *const received = buffer_, *const sums = buffer_ + kRanks * part;
  const auto length = [&](int rank) { return std::clamp<int64_t>(count - rank * part, 0, part); };
  exchange_parts(native, partial, received, part, length);
  if (const int64_t n = length(rank_); n > 0) {
    cuda::launch(nccl::sum_part_kernel<kRanks, V>, grid_for(stream, n / V), stream, received, partial + own, sums + own,
                 static_cast<int>(n), static_cast<int>(part), rank_);
  }
  all_gather(native, sums + own, sums, part);
  cuda::launch(nccl::add_sums_kernel<V>, grid_for(stream, count / V), stream, sums, x, static_cast<int>(count));
}

void NcclCommunicator::add_sum(Stream& stream, TensorView partial, TensorView x) {
  VOLLEY_CHECK(partial.dtype == DType::kF32 && x.dtype == DType::kF32 && partial.count() == x.count());
  const int64_t count = x.count();
  if (stream.dry()) {
    for (int64_t i = nccl_sum_launches(count, ranks(), in_parts_bytes_); i > 0; --i) stream.skip_launch();
    return;
  }
  state().throw_if_gone();
  const SumCut cut = nccl_cut_sum(count, ranks(), in_parts_bytes_);
  dispatch_ranks<kMostGroupRanks>(ranks(), in_fours(partial, count) && in_fours(x, count), [&]<int kRanks, int V>() {
    for (int64_t begin = 0; begin < count; begin += cut.chunk) {
      const int64_t n = std::min(cut.chunk, count - begin);
      const float* from = partial.as<float>() + begin;
      float* to = x.as<float>() + begin;
      cut.in_parts ? add_in_parts<kRanks, V>(stream, from, to, n) : add<kRanks, V>(stream, from, to, n);
    }
  });
}

void NcclCommunicator::gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) {
  VOLLEY_CHECK(mine.dtype == DType::kF32 && out.dtype == DType::kF32 && mine.rank == 2 && out.rank == 2);
  VOLLEY_CHECK_EQ(mine.dim(0), out.dim(0));
  const int64_t rows = out.dim(0), width = out.dim(1), columns = mine.dim(1);
  VOLLEY_CHECK(first >= 0 && columns <= most && first + columns <= width);
  if (out.count() == 0) return;
  if (stream.dry()) {
    for (int64_t i = nccl_gather_launches(rows, most, ranks()); i > 0; --i) stream.skip_launch();
    return;
  }
  state().throw_if_gone();
  const NcclGatherCut cut = nccl_cut_gather(most, ranks());
  const bool pack_fours = in_fours(mine, columns), unpack_fours = in_fours(out, width);
  for (int64_t row = 0; row < rows; row += cut.rows) {
    const int64_t n = std::min(cut.rows, rows - row), block = cut.block(n);
    float* const own = buffer_ + rank_ * block;
    const auto pack = pack_fours ? nccl::pack_kernel<4> : nccl::pack_kernel<1>;
    cuda::launch(pack, grid_for(stream, n * columns / (pack_fours ? 4 : 1)), stream, mine.as<float>() + row * columns,
                 static_cast<int>(columns), static_cast<int>(first), own, static_cast<int>(cut.stride),
                 static_cast<int>(n));
    all_gather(cuda::native(stream), own, buffer_, block);
    cuda::Launch how = grid_for(stream, n * cut.stride / 4);
    how.grid.y = static_cast<unsigned>(ranks());
    cuda::launch(nccl::unpack_kernel, how, stream, buffer_, static_cast<int>(block), static_cast<int>(cut.stride),
                 out.as<float>() + row * width, static_cast<int>(n), static_cast<int>(width), unpack_fours);
  }
}

// The id by which NCCL's ranks find one another: made by the process of rank 0, which sends it to the other processes.
Result<NcclUniqueId> agree_on_id(const NcclApi& api, int first, const std::vector<NodeLink>& links) {
  NcclUniqueId id = {};
  if (first == 0) {
    if (const NcclResult made = api.get_unique_id(&id); made != NcclResult::kSuccess) {
      return Error{ErrorCode::kUnavailable, "NCCL finds no network to meet other nodes in: " + api.describe(made) +
                                                ". NCCL_SOCKET_IFNAME in the environment names an interface."};
    }
    for (const NodeLink& link : links) {
      const Status sent = link.connection->send(id.bytes);
      if (!sent.ok()) return Error{ErrorCode::kUnavailable, "A node has gone: " + sent.error().message + "."};
    }
    return id;
  }
  const auto link = std::ranges::find(links, 0, &NodeLink::first_rank);
  VOLLEY_CHECK(link != links.end());
  const Status received = link->connection->receive(id.bytes, net::after(kForTheId));
  if (!received.ok()) {
    return Error{ErrorCode::kUnavailable, "Node 0 has not begun to sum over NCCL: " + received.error().message + "."};
  }
  return id;
}

}  // namespace

Result<Group> make_nccl_group(int ranks, int first, const std::vector<int>& gpus, std::vector<NodeLink> links,
                              const CudaGroupOptions& options) {
  const auto local = static_cast<int>(gpus.size());
  VOLLEY_CHECK(ranks >= 1 && ranks <= kMostGroupRanks && (ranks & (ranks - 1)) == 0);
  VOLLEY_CHECK(local >= 1 && first >= 0 && first + local <= ranks && (local == ranks) == links.empty());
  VOLLEY_CHECK_EQ(std::set<int>(gpus.begin(), gpus.end()).size(), gpus.size());
  for (const int gpu : gpus) {
    if (const auto facts = examine_cuda_device(gpu); !facts.ok()) return facts.error();
  }
  VOLLEY_ASSIGN(const NcclApi* api, load_nccl());
  VOLLEY_RETURN_IF_ERROR(check_kernels_load_early());
  VOLLEY_ASSIGN(std::unique_ptr<GpuClaim> claim, GpuClaim::make(gpus));
  VOLLEY_ASSIGN(const NcclUniqueId id, agree_on_id(*api, first, links));
  auto state = std::make_shared<NcclState>(*api, ranks, first, gpus, std::move(links));
  const auto shared = std::make_shared<Shared>(std::move(state), id, std::move(claim));
  const int64_t in_parts = options.in_parts_bytes >= 0 ? options.in_parts_bytes : kNcclInPartsBytes;
  Group group;
  for (int i = 0; i < local; ++i) group.push_back(std::make_unique<NcclCommunicator>(shared, first + i, in_parts));
  return Result<Group>(std::move(group));
}

}  // namespace volley::comm
