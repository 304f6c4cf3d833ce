#include <algorithm>
#include <array>

#include "base/math.h"
#include "comm/barrier.h"
#include "comm/comm.h"
#include "comm/gone.h"
#include "comm/node_exchange.h"
#include "device/cpu/thread_pool.h"

namespace volley::comm {
namespace {

constexpr int64_t kLine = 16;               // floats: ranks' shares begin at whole cache lines
constexpr int64_t kElementsPerTask = 8192;  // below, a thread takes longer to wake up than to add

// The state that the ranks of this process share.
struct Shared {
  // A rank's arguments of a call.
  struct Post {
    TensorView from, to;
  };
  Shared(int all, int first_rank, int local, std::vector<NodeLink> links)
      : ranks(all), first(first_rank), begin(local), here(local), end(local), posts(static_cast<size_t>(local)) {
    if (!links.empty()) others = std::make_unique<NodeExchange>(std::move(links), all, first_rank, local);
  }
  void abort(int who) {
    begin.abort(who);
    if (others != nullptr) others->shut_down();
  }

  const int ranks, first;
  // The barriers of a call. All ranks pass `begin` first. With other processes, each part of the call passes `here`
  // once the data that they sent has arrived. A call or part ends with `end`. Only `begin` can be aborted: a rank that
  // has passed it stays to the end, while others still read or write its memory.
  Barrier begin, here, end;
  std::vector<Post> posts;               // by rank, from `first` on; each rank writes its own before a call begins
  std::unique_ptr<NodeExchange> others;  // null: all ranks are in this process. The first rank here uses it
};

class CpuCommunicator final : public Communicator {
 public:
  CpuCommunicator(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}
  ~CpuCommunicator() override { shared_->abort(rank_); }

  int rank() const override { return rank_; }
  int ranks() const override { return shared_->ranks; }

  Status prepare(Device& device) override;
  void add_sum(Stream& stream, TensorView partial, TensorView x) override;
  void gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) override;
  void check() const override;
  void abort() override { shared_->abort(rank_); }

 private:
  int local() const { return static_cast<int>(shared_->posts.size()); }
  int place() const { return rank_ - shared_->first; }  // index among the ranks of this process
  bool is_here(int rank) const { return rank >= shared_->first && rank < shared_->first + local(); }
  void begin(TensorView from, TensorView to);
  void exchange(const NodeExchange::Part& part, int64_t begin);
  void end() { VOLLEY_CHECK(shared_->end.wait()); }
  void add_part(Stream& stream, int64_t begin, int64_t count) const;
  void add_elements(int64_t begin, int64_t first, int64_t last) const;
  void gather_rows(Stream& stream, int64_t begin, int64_t rows, int64_t first) const;

  std::shared_ptr<Shared> shared_;
  const int rank_;
  Buffer memory_;  // the memory of this process's first rank, for data from other processes
};

Status CpuCommunicator::prepare(Device& device) {
  if (shared_->others == nullptr || place() != 0) return {};
  VOLLEY_ASSIGN(memory_, device.allocate(static_cast<size_t>(NodeExchange::bytes(ranks() - local()))));
  shared_->others->set_memory(static_cast<float*>(memory_.data()));
  return {};
}

void CpuCommunicator::begin(TensorView from, TensorView to) {
  shared_->posts[place()] = {from, to};
  if (!shared_->begin.wait()) throw_gone(shared_->begin.aborted_by(), ranks());
}

// Rows [begin, begin + part.rows) that this process's ranks have posted, for the other processes.
void CpuCommunicator::exchange(const NodeExchange::Part& part, int64_t begin) {
  NodeExchange& others = *shared_->others;
  if (place() == 0) {
    std::array<std::span<const float>, kMostGroupRanks> mine;
    for (int i = 0; i < local(); ++i) {
      const TensorView from = shared_->posts[i].from;
      // A sum's elements are rows of one column here.
      const int64_t columns = part.kind == NodeExchange::Kind::kSum ? 1 : from.dim(1);
      mine[i] = {from.as<float>() + begin * columns, static_cast<size_t>(part.rows * columns)};
    }
    others.run(part, std::span(mine).first(local()));
  }
  VOLLEY_CHECK(shared_->here.wait());
  if (const int gone = others.failed_rank(); gone >= 0) {
    shared_->begin.abort(gone);  // a rank of this process that ended the connections has aborted already
    const int who = shared_->begin.aborted_by();
    const char* const cause = who == gone ? others.failure().c_str() : nullptr;
    if (cause != nullptr && is_here(who)) throw DeviceFault(gone_sentence(who, ranks(), cause));
    throw_gone(who, ranks(), cause);
  }
}

void CpuCommunicator::check() const {
  if (const int who = shared_->begin.aborted_by(); who >= 0) throw_gone(who, ranks());
}

void CpuCommunicator::add_sum(Stream& stream, TensorView partial, TensorView x) {
  VOLLEY_CHECK(partial.dtype == DType::kF32 && x.dtype == DType::kF32 && partial.count() == x.count());
  if (stream.dry()) return;
  begin(partial, x);
  for (const Shared::Post& post : shared_->posts) VOLLEY_CHECK_EQ(post.from.count(), x.count());
  if (shared_->others == nullptr || x.count() == 0) {
    add_part(stream, 0, x.count());
    return end();
  }
  for (int64_t at = 0; at < x.count(); at += kNodeChunk) {
    const int64_t count = std::min(kNodeChunk, x.count() - at);
    exchange({NodeExchange::Kind::kSum, count, 1}, at);
    add_part(stream, at, count);
    end();
  }
}

// Each rank adds a part of the elements and writes the sums to all ranks of this process: every sum is made once, and
// all ranks have the same bits.
void CpuCommunicator::add_part(Stream& stream, int64_t begin, int64_t count) const {
  const int64_t lines = divide_up(count, kLine);
  const int64_t first = lines * place() / local() * kLine;
  const int64_t last = std::min(lines * (place() + 1) / local() * kLine, count);
  const int64_t tasks = divide_up(std::max<int64_t>(0, last - first), kElementsPerTask);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    const int64_t at = first + task * kElementsPerTask;
    add_elements(begin, at, std::min(at + kElementsPerTask, last));
  });
}

// Elements [first, last) of the part; received data begins at `begin`.
void CpuCommunicator::add_elements(int64_t begin, int64_t first, int64_t last) const {
  constexpr int64_t kBlock = 256;  // all ranks' data of one piece fits into the nearest cache
  const auto partial_of = [&](int rank, int64_t at) -> const float* {
    if (!is_here(rank)) return shared_->others->received(rank).data() + at;
    return shared_->posts[rank - shared_->first].from.as<float>() + begin + at;
  };
  float sums[kMostGroupRanks][kBlock];
  for (int64_t at = first; at < last; at += kBlock) {
    const int64_t n = std::min(kBlock, last - at);
    for (int r = 0; r < ranks(); ++r) std::copy_n(partial_of(r, at), n, sums[r]);
    for (int step = 1; step < ranks(); step *= 2) {
      for (int r = 0; r + step < ranks(); r += 2 * step) {
        for (int64_t i = 0; i < n; ++i) sums[r][i] += sums[r + step][i];
      }
    }
    const float* x = shared_->posts[place()].to.as<float>() + begin + at;
    for (int64_t i = 0; i < n; ++i) sums[0][i] = x[i] + sums[0][i];
    for (const Shared::Post& post : shared_->posts) std::copy_n(sums[0], n, post.to.as<float>() + begin + at);
  }
}

void CpuCommunicator::gather_columns(Stream& stream, TensorView mine, int64_t first, int64_t most, TensorView out) {
  VOLLEY_CHECK(mine.dtype == DType::kF32 && out.dtype == DType::kF32 && mine.rank == 2 && out.rank == 2);
  VOLLEY_CHECK_EQ(mine.dim(0), out.dim(0));
  VOLLEY_CHECK_LE(mine.dim(1), most);
  if (stream.dry()) return;
  begin(mine, out);
  for (const Shared::Post& post : shared_->posts) VOLLEY_CHECK_EQ(post.from.dim(0), out.dim(0));
  if (out.count() == 0) return end();
  if (shared_->others == nullptr) {
    gather_rows(stream, 0, out.dim(0), first);
    return end();
  }
  VOLLEY_CHECK_LE(out.dim(1), kNodeChunk);
  const int64_t rows = std::max<int64_t>(1, kNodeChunk / std::max<int64_t>(1, out.dim(1)));
  for (int64_t at = 0; at < out.dim(0); at += rows) {
    const int64_t n = std::min(rows, out.dim(0) - at);
    exchange({NodeExchange::Kind::kColumns, n, out.dim(1)}, at);
    gather_rows(stream, at, n, first);
    end();
  }
}

// Rows [begin, begin + rows) of this rank's result.
void CpuCommunicator::gather_rows(Stream& stream, int64_t begin, int64_t rows, int64_t first) const {
  struct Columns {
    const float* from;  // values of row `begin`
    int64_t count;
  };
  const TensorView out = shared_->posts[place()].to;
  std::array<Columns, kMostGroupRanks> columns;
  int64_t all = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_) VOLLEY_CHECK_EQ(all, first);
    if (is_here(rank)) {
      const TensorView from = shared_->posts[rank - shared_->first].from;
      columns[rank] = {from.as<float>() + begin * from.dim(1), from.dim(1)};
    } else {
      const std::span<const float> from = shared_->others->received(rank);
      columns[rank] = {from.data(), std::ssize(from) / rows};
    }
    all += columns[rank].count;
  }
  VOLLEY_CHECK_EQ(all, out.dim(1));
  const int64_t tasks = std::min(rows, divide_up(rows * out.dim(1), kElementsPerTask));
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
      float* to = out.as<float>() + (begin + row) * out.dim(1);
      for (const Columns& part : std::span(columns).first(ranks())) {
        to = std::copy_n(part.from + row * part.count, part.count, to);
      }
    }
  });
}

}  // namespace

Group make_cpu_group(int ranks) {
  return make_node_group(ranks, 0, ranks, {});
}

Group make_node_group(int ranks, int first, int local, std::vector<NodeLink> links) {
  VOLLEY_CHECK_LE(ranks, kMostGroupRanks);
  VOLLEY_CHECK(local >= 1 && first >= 0 && first + local <= ranks && (local == ranks) == links.empty());
  const auto shared = std::make_shared<Shared>(ranks, first, local, std::move(links));
  Group group;
  for (int r = 0; r < local; ++r) group.push_back(std::make_unique<CpuCommunicator>(shared, first + r));
  return group;
}

}  // namespace volley::comm
