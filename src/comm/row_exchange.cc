#include "comm/row_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "comm/barrier.h"
#include "comm/exchange_layout.h"
#include "comm/gone.h"
#include "device/cpu/thread_pool.h"

namespace volley::comm {
namespace {

constexpr int64_t kBytesPerTask = 32 << 10;  // below, a thread takes longer to wake up than to copy

void check_copy(const RowExchange::Copy& copy) {
  VOLLEY_CHECK(copy.from.dtype == copy.to.dtype);
  VOLLEY_CHECK_EQ(copy.from.count(), copy.to.count());
}

// Arguments of a dry stream of the CPU: a piece is as large as it can be.
RowExchange::Rows most_of_a_piece(int64_t rows, int64_t most_rows) {
  const int64_t all = std::max(rows, most_rows);
  return {all, 0, std::min(all, most_rows), all};
}

// The state that replicas on the CPU share.
struct SharedRows {
  SharedRows(int count, int64_t most, int64_t size) : barrier(count), most_rows(most), bytes(size) {
    for (std::vector<int64_t>& turn : rows) turn.resize(static_cast<size_t>(count));
  }

  Barrier barrier;
  const int64_t most_rows, bytes;
  // The replicas' arguments of a layer. Two layers in turn: a fast replica may write the next layer's while others
  // still read.
  std::array<std::vector<int64_t>, 2> rows;
  std::mutex mutex;
  Buffer memory;  // guarded by mutex while allocated; the common memory lives until the last replica leaves
};

class CpuRowExchange final : public RowExchange {
 public:
  CpuRowExchange(std::shared_ptr<SharedRows> shared, int replica, int replicas)
      : RowExchange(replica, replicas), shared_(std::move(shared)) {}
  ~CpuRowExchange() override { abort(); }

  Status prepare(Device& device) override;
  Rows begin(Stream& stream, int64_t rows) override;
  void bring(Stream& stream, std::span<const Copy> copies) override;
  void meet(Stream& stream) override;
  void check() const override {}  // the calls before have thrown
  void abort() override { shared_->barrier.abort(replica()); }

 private:
  void wait();

  const std::shared_ptr<SharedRows> shared_;
  bool odd_ = false;  // layers so far
};

// The first replica to call allocates the memory of all.
Status CpuRowExchange::prepare(Device& device) {
  const std::lock_guard lock(shared_->mutex);
  Buffer& memory = shared_->memory;
  if (memory.data() == nullptr) {
    VOLLEY_ASSIGN(memory, device.allocate(static_cast<size_t>(shared_->bytes)));
  }
  set_common(Arena(Buffer(memory.data(), memory.bytes(), [](void*, size_t) {})));
  return {};
}

RowExchange::Rows CpuRowExchange::begin(Stream& stream, int64_t rows) {
  if (stream.dry()) return most_of_a_piece(rows, shared_->most_rows);
  std::vector<int64_t>& turn = shared_->rows[odd_ ? 1 : 0];
  odd_ = !odd_;
  turn[static_cast<size_t>(replica())] = rows;
  wait();
  Rows all;
  for (int i = 0; i < replicas(); ++i) {
    if (i == replica()) all.first = all.all;
    all.all += turn[static_cast<size_t>(i)];
  }
  all.at_once = std::min(all.all, shared_->most_rows);
  all.likely = all.at_once;
  return all;
}

void CpuRowExchange::bring(Stream& stream, std::span<const Copy> copies) {
  VOLLEY_CHECK_LE(copies.size(), kMostCopies);
  for (const Copy& copy : copies) {
    check_copy(copy);
    if (stream.dry()) continue;
    const int64_t bytes = copy.from.bytes();
    if (bytes == 0) continue;
    stream.pool().parallel_for(divide_up(bytes, kBytesPerTask), [&](int64_t task, int) {
      const int64_t at = task * kBytesPerTask;
      std::memcpy(static_cast<char*>(copy.to.data) + at, static_cast<const char*>(copy.from.data) + at,
                  static_cast<size_t>(std::min(kBytesPerTask, bytes - at)));
    });
  }
  meet(stream);
}

void CpuRowExchange::meet(Stream& stream) {
  if (!stream.dry()) wait();
}

// A replica may leave while others read and write the shared memory, so each holds a reference to it.
void CpuRowExchange::wait() {
  if (!shared_->barrier.wait()) throw_gone(shared_->barrier.aborted_by(), replicas(), nullptr, "Replica");
}

class DryRowExchange final : public RowExchange {
 public:
  DryRowExchange(int replica, int replicas, int64_t most_rows) : RowExchange(replica, replicas), most_rows_(most_rows) {
    set_common(Arena::measuring());
  }

  Status prepare(Device&) override { return {}; }
  Rows begin(Stream& stream, int64_t rows) override {
    VOLLEY_CHECK(stream.dry());
    if (stream.kind() == DeviceKind::kCpu) return most_of_a_piece(rows, most_rows_);
    VOLLEY_CHECK_LE(rows, most_rows_);
    const int64_t all = replicas() * most_rows_;
    return {all, replica() * most_rows_, all, replicas() * std::max<int64_t>(rows, 1)};
  }
  void bring(Stream& stream, std::span<const Copy> copies) override {
    for (const Copy& copy : copies) check_copy(copy);
    meet(stream);
  }
  void meet(Stream& stream) override {
    if (stream.kind() == DeviceKind::kCuda) stream.skip_launch();
  }
  void check() const override {}
  void abort() override {}

 private:
  const int64_t most_rows_;
};

}  // namespace

Arena& RowExchange::common() {
  VOLLEY_CHECK(common_ != nullptr);
  return *common_;
}

RowExchanges make_row_exchanges(int replicas, int64_t most_rows, int64_t bytes) {
  VOLLEY_CHECK(replicas >= 1 && most_rows >= 1 && bytes >= 1);
  const auto shared = std::make_shared<SharedRows>(replicas, most_rows, bytes);
  RowExchanges exchanges;
  for (int i = 0; i < replicas; ++i) exchanges.push_back(std::make_unique<CpuRowExchange>(shared, i, replicas));
  return exchanges;
}

std::unique_ptr<RowExchange> make_dry_row_exchange(int replica, int replicas, int64_t most_rows) {
  return std::make_unique<DryRowExchange>(replica, replicas, most_rows);
}

int64_t row_exchange_bytes(DeviceKind device, int replicas, int64_t bytes) {
  return device == DeviceKind::kCpu ? divide_up(bytes, replicas) : kExchangeHeaderBytes + bytes;
}

}  // namespace volley::comm
