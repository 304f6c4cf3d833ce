#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "comm/barrier.h"
#include "comm/comm.h"
#include "comm/gone.h"
#include "device/cpu/thread_pool.h"

namespace volley::comm {
namespace {

constexpr int64_t kLine = 16;               // floats: what ranks share out begins at whole lines of the cache
constexpr int64_t kElementsPerTask = 8192;  // below, a thread takes longer to wake up than to add

// What the ranks see of one another.
struct Shared {
  // What a rank brings to a call.
  struct Post {
    TensorView from, to;
  };
  explicit Shared(int ranks) : begin(ranks), end(ranks), posts(static_cast<size_t>(ranks)) {}

  // Both are a call's. Who has come to its end has come to its beginning, so the end is never aborted: nobody leaves
  // while others still read or write its memory.
  Barrier begin, end;
  std::vector<Post> posts;  // by rank; written by it alone before a call begins
};

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~CpuCommunicator() override { shared_->begin.abort(rank_); }

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(shared_->posts.size()); }

  Status prepare(Device&) override { return {}; }
  void add_sum(Stream& stream, TensorView partial, TensorView x) override;
  void gather_columns(Stream& stream, TensorView mine, int64_t first, TensorView out) override;
  void check() const override;
  void abort() override { shared_->begin.abort(rank_); }

 private:
  void begin(TensorView from, TensorView to);
  void end() { VOLLEY_CHECK(shared_->end.wait()); }
  void add_elements(int64_t first, int64_t last) const;

  std::shared_ptr<Shared> shared_;
  const int rank_;
};

void CpuCommunicator::begin(TensorView from, TensorView to) {
  shared_->posts[rank_] = {from, to};
  if (!shared_->begin.wait()) throw_gone(shared_->begin.aborted_by(), ranks());
}

void CpuCommunicator::check() const {
  if (const int who = shared_->begin.aborted_by(); who >= 0) throw_gone(who, ranks());
}

// Every rank adds a part of the elements and writes it to all ranks: nobody adds twice, and all have the same bits.
void CpuCommunicator::add_sum(Stream& stream, TensorView partial, TensorView x) {
  VOLLEY_CHECK(partial.dtype == DType::kF32 && x.dtype == DType::kF32 && partial.count() == x.count());
  if (stream.dry()) return;
  begin(partial, x);
  for (const Shared::Post& post : shared_->posts) VOLLEY_CHECK_EQ(post.from.count(), x.count());
  const int64_t lines = divide_up(x.count(), kLine);
  const int64_t first = lines * rank_ / ranks() * kLine;
  const int64_t last = std::min(lines * (rank_ + 1) / ranks() * kLine, x.count());
  const int64_t tasks = divide_up(std::max<int64_t>(0, last - first), kElementsPerTask);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    const int64_t at = first + task * kElementsPerTask;
    add_elements(at, std::min(at + kElementsPerTask, last));
  });
  end();
}

void CpuCommunicator::add_elements(int64_t first, int64_t last) const {
  constexpr int64_t kBlock = 256;  // that stays in registers and the nearest cache
  float sum[kBlock];
  for (int64_t at = first; at < last; at += kBlock) {
    const int64_t n = std::min(kBlock, last - at);
    std::copy_n(shared_->posts[0].from.as<float>() + at, n, sum);
    for (int r = 1; r < ranks(); ++r) {
      const float* partial = shared_->posts[r].from.as<float>() + at;
      for (int64_t i = 0; i < n; ++i) sum[i] += partial[i];
    }
    const float* x = shared_->posts[rank_].to.as<float>() + at;
    for (int64_t i = 0; i < n; ++i) sum[i] = x[i] + sum[i];
    for (const Shared::Post& post : shared_->posts) std::copy_n(sum, n, post.to.as<float>() + at);
  }
}

void CpuCommunicator::gather_columns(Stream& stream, TensorView mine, int64_t first, TensorView out) {
  VOLLEY_CHECK(mine.dtype == DType::kF32 && out.dtype == DType::kF32 && mine.rank == 2 && out.rank == 2);
  VOLLEY_CHECK_EQ(mine.dim(0), out.dim(0));
  if (stream.dry()) return;
  begin(mine, out);
  const int64_t rows = out.dim(0), width = out.dim(1);
  int64_t all = 0;
  for (size_t r = 0; r < shared_->posts.size(); ++r) {
    const Shared::Post& post = shared_->posts[r];
    VOLLEY_CHECK_EQ(post.from.dim(0), rows);
    if (static_cast<int>(r) == rank_) VOLLEY_CHECK_EQ(all, first);
    all += post.from.dim(1);
  }
  VOLLEY_CHECK_EQ(all, width);
  const int64_t tasks = std::min(rows, divide_up(out.count(), kElementsPerTask));
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
      float* to = out.as<float>() + row * width;
      for (const Shared::Post& post : shared_->posts) {
        const int64_t n = post.from.dim(1);
        to = std::copy_n(post.from.as<float>() + row * n, n, to);
      }
    }
  });
  end();
}

}  // namespace

Group make_cpu_group(int ranks) {
  VOLLEY_CHECK_GE(ranks, 1);
  const auto shared = std::make_shared<Shared>(ranks);
  Group group;
  for (int r = 0; r < ranks; ++r) group.push_back(std::make_unique<CpuCommunicator>(shared, r));
  return group;
}

}  // namespace volley::comm
