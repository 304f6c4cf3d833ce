#include "comm/row_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "comm/barrier.h"
#include "comm/gone.h"
#include "device/cpu/thread_pool.h"

namespace volley::comm {
namespace {

constexpr int64_t kBytesPerTask = 32 << 10;  // below, a thread takes longer to wake up than to copy

}  // namespace

struct RowExchange::Shared {
  Shared(int count, int64_t most, int64_t size) : barrier(count), replicas(count), most_rows(most), bytes(size) {
    for (std::vector<int64_t>& turn : rows) turn.resize(static_cast<size_t>(count));
  }

  Barrier barrier;
  const int replicas;
  const int64_t most_rows, bytes;
  // What replicas bring to a layer. Two layers in turn: who is fast may write the next one's while others still read.
  std::array<std::vector<int64_t>, 2> rows;
  std::mutex mutex;
  Buffer memory;  // guarded by mutex while it is taken; nobody's rows outlive it, whoever goes first
};

RowExchange::RowExchange(std::shared_ptr<Shared> shared, int replica) : shared_(std::move(shared)), replica_(replica) {
  if (shared_->bytes == 0) common_ = std::make_unique<Arena>(Arena::measuring());
}

RowExchange::~RowExchange() {
  abort();
}

int RowExchange::replicas() const {
  return shared_->replicas;
}

int64_t RowExchange::most_rows() const {
  return shared_->most_rows;
}

Status RowExchange::prepare(Device& device) {
  const std::lock_guard lock(shared_->mutex);
  Buffer& memory = shared_->memory;
  if (memory.data() == nullptr) {
    VOLLEY_ASSIGN(memory, device.allocate(static_cast<size_t>(shared_->bytes)));
  }
  common_ = std::make_unique<Arena>(Buffer(memory.data(), memory.bytes(), [](void*, size_t) {}));
  return {};
}

RowExchange::Rows RowExchange::begin(Stream& stream, int64_t rows) {
  if (stream.dry()) return {std::max(rows, most_rows()), 0};
  std::vector<int64_t>& turn = shared_->rows[odd_ ? 1 : 0];
  odd_ = !odd_;
  turn[static_cast<size_t>(replica_)] = rows;
  wait();
  Rows all;
  for (int i = 0; i < replicas(); ++i) {
    if (i == replica_) all.first = all.all;
    all.all += turn[static_cast<size_t>(i)];
  }
  return all;
}

Arena& RowExchange::common() {
  VOLLEY_CHECK(common_ != nullptr);
  return *common_;
}

void RowExchange::put(Stream& stream, TensorView from, TensorView to) const {
  VOLLEY_CHECK(from.dtype == to.dtype);
  VOLLEY_CHECK_EQ(from.count(), to.count());
  const int64_t bytes = from.bytes();
  if (stream.dry() || bytes == 0) return;
  const int64_t tasks = divide_up(bytes, kBytesPerTask);
  stream.pool().parallel_for(tasks, [&](int64_t task, int) {
    const int64_t at = task * kBytesPerTask;
    std::memcpy(static_cast<char*>(to.data) + at, static_cast<const char*>(from.data) + at,
                static_cast<size_t>(std::min(kBytesPerTask, bytes - at)));
  });
}

void RowExchange::meet(Stream& stream) {
  if (!stream.dry()) wait();
}

// Whoever goes may do so while others read and write what it shared with them: that memory is theirs, too.
void RowExchange::wait() {
  if (!shared_->barrier.wait()) throw_gone(shared_->barrier.aborted_by(), replicas(), nullptr, "Replica");
}

void RowExchange::abort() {
  shared_->barrier.abort(replica_);
}

RowExchanges make_row_exchanges(int replicas, int64_t most_rows, int64_t bytes) {
  VOLLEY_CHECK(replicas >= 1 && most_rows >= 1 && bytes >= 1);
  const auto shared = std::make_shared<RowExchange::Shared>(replicas, most_rows, bytes);
  RowExchanges exchanges;
  for (int i = 0; i < replicas; ++i) exchanges.push_back(std::make_unique<RowExchange>(shared, i));
  return exchanges;
}

std::unique_ptr<RowExchange> make_dry_row_exchange(int replicas, int64_t most_rows) {
  return std::make_unique<RowExchange>(std::make_shared<RowExchange::Shared>(replicas, most_rows, 0), 0);
}

}  // namespace volley::comm
