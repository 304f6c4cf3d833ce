#include "decode/features/features_spec.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/math.h"
#include "device/fault.h"
#include "families/fields.h"

namespace volley::decode::features {
namespace {

using families::ConfigFields;

constexpr int64_t kPieceBytes = int64_t{16} << 20;  // of host memory that a copy from the device goes through

int64_t row_bytes_of(int64_t columns, int64_t value_bytes) {
  return round_up(16 + columns * value_bytes, int64_t{16});
}

bool has_ended(int64_t process) {
  return kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

// The mapped file.
class Ring {
 public:
  static Result<std::unique_ptr<Ring>> open(const std::string& path, int64_t columns, int64_t value_bytes) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) {
      return not_found("There is no ring of features at " + path + ": start the program that reads them first.");
    }
    struct stat facts = {};
    const bool known = fstat(file, &facts) == 0 && facts.st_size > kRingPage;
    const auto size = static_cast<size_t>(facts.st_size);
    constexpr int kFlags = MAP_SHARED | MAP_POPULATE;  // no step waits for a page of it
    void* const memory = known ? mmap(nullptr, size, PROT_READ | PROT_WRITE, kFlags, file, 0) : MAP_FAILED;
    close(file);
    if (memory == MAP_FAILED) return data_loss(path + " cannot be mapped as a ring of features.");
    auto ring = std::make_unique<Ring>(memory, size);
    RingHead& head = ring->head();
    if (head.magic != kRingMagic || head.bytes != facts.st_size - kRingPage) {
      return data_loss(path + " is no ring of features: volley-train makes one.");
    }
    int64_t none = 0;
    if (!head.writer.compare_exchange_strong(none, getpid())) {
      return failed_precondition("Another engine writes to the ring " + path + ": give each one its own.");
    }
    head.columns = columns;
    head.value_bytes = value_bytes;
    head.row_bytes = row_bytes_of(columns, value_bytes);
    if (head.bytes < head.row_bytes) {
      return data_loss("The ring " + path + " has " + std::to_string(head.bytes) +
                       " bytes, but a row of features takes " + std::to_string(head.row_bytes) + ": make it larger.");
    }
    return ring;
  }

  Ring(void* memory, size_t bytes) : memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}
  ~Ring() { munmap(memory_, bytes_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  RingHead& head() { return *reinterpret_cast<RingHead*>(memory_); }
  int64_t rows() { return head().bytes / head().row_bytes; }
  std::byte* row(int64_t number) { return memory_ + kRingPage + (number % rows()) * head().row_bytes; }
  std::string reader_ended() {
    return "The program that reads the engine's features (process " + std::to_string(head().reader) +
           ") has ended: start it again, then the engine.";
  }

 private:
  std::byte* const memory_;
  const size_t bytes_;
};

// Rows on their way through host memory.
struct Piece {
  Buffer memory;
  int64_t rows = 0;
  std::unique_ptr<Fence> arrived;
};

class FeatureStream final : public Proposer {
 public:
  FeatureStream(Device& device, std::vector<int32_t> layers) : device_(device), layers_(std::move(layers)) {}

  Status allocate(int32_t most_drafts) {
    VOLLEY_ASSIGN(zeros_, device_.allocate(static_cast<size_t>(std::max(1, most_drafts)) * sizeof(TokenId)));
    return {};
  }

  // Pieces for two passes: the device goes on while the rows of the pass before are written.
  Status allocate_pieces(int64_t row_bytes, int32_t most_rows) {
    VOLLEY_CHECK_GE(most_rows, 1);
    piece_rows_ = std::clamp<int64_t>(kPieceBytes / row_bytes, 1, most_rows);
    pieces_.resize(static_cast<size_t>(2 * divide_up(int64_t{most_rows}, piece_rows_)));
    for (Piece& piece : pieces_) {
      VOLLEY_ASSIGN(piece.memory, device_.allocate_host(static_cast<size_t>(piece_rows_ * row_bytes)));
      piece.arrived = device_.make_fence();
    }
    return {};
  }

  void start(std::unique_ptr<Ring> ring) {
    ring_ = std::move(ring);
    writer_ = std::thread([this] { write_pieces(); });
  }

  // What is under way is written before.
  ~FeatureStream() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    if (writer_.joinable()) writer_.join();
  }

  int32_t proposals() const override { return 1; }
  std::span<const int32_t> feature_layers() const override { return layers_; }
  bool recordable() const override { return false; }

  // A budget that asks for drafts all the same gets some that are never believed.
  void draft(Stream& stream, const DraftPass& pass, const ops::SamplerState& sampler, Arena& scratch) override {
    if (pass.drafts == 0 || stream.dry()) return;
    const size_t bytes = static_cast<size_t>(pass.drafts) * sizeof(TokenId);
    VOLLEY_CHECK(bytes <= zeros_.bytes());
    device_.enqueue_copy(pass.tokens, zeros_.data(), bytes);
    device_.enqueue_copy(pass.confidence, zeros_.data(), bytes);
  }

  void commit(Stream& stream, const ops::Rows& rows, TensorView features, Arena& scratch) override {
    if (stream.dry()) return;
    const auto width = static_cast<int64_t>(features.dim(1)) * ring_->head().value_bytes;
    for (int64_t begin = 0; begin < rows.rows; begin += piece_rows_) {
      Piece& piece = free_piece();
      piece.rows = std::min(piece_rows_, rows.rows - begin);
      auto* to = static_cast<std::byte*>(piece.memory.data());
      for (const TensorView* array : {&rows.token_ids, &rows.slots, &rows.cache_positions}) {
        device_.enqueue_download(to, static_cast<const int32_t*>(array->data) + begin, piece.rows * sizeof(int32_t));
        to += piece_rows_ * sizeof(int32_t);
      }
      const auto* from = static_cast<const std::byte*>(features.data) + begin * width;
      device_.enqueue_download(to, from, static_cast<size_t>(piece.rows * width));
      piece.arrived->set();
      const std::lock_guard lock(mutex_);
      ++filled_;
      changed_.notify_all();
    }
  }

 private:
  // Waits while all are under way, as they are while the ring is full.
  Piece& free_piece() {
    std::unique_lock lock(mutex_);
    if (failure_.empty() && has_ended(ring_->head().reader)) failure_ = ring_->reader_ended();
    changed_.wait(lock, [this] { return filled_ - written_ < std::ssize(pieces_) || !failure_.empty(); });
    if (!failure_.empty()) throw DeviceFault(failure_);
    return pieces_[static_cast<size_t>(filled_) % pieces_.size()];
  }

  void write_pieces() {
    try {
      device_.attach_thread();
      for (std::unique_lock lock(mutex_);;) {
        changed_.wait(lock, [this] { return filled_ > written_ || ends_; });
        if (filled_ == written_) return;
        lock.unlock();
        Piece& piece = pieces_[static_cast<size_t>(written_) % pieces_.size()];
        piece.arrived->wait();
        const bool good = write(piece);
        lock.lock();
        if (!good) failure_ = ring_->reader_ended();
        if (good) ++written_;
        changed_.notify_all();
        if (!good) return;
      }
    } catch (const DeviceFault& fault) {
      const std::lock_guard lock(mutex_);
      failure_ = fault.what();
      changed_.notify_all();
    }
  }

  // False: the reader has ended.
  bool write(const Piece& piece) {
    RingHead& head = ring_->head();
    const auto* const heads = static_cast<const int32_t*>(piece.memory.data());
    const auto* features = reinterpret_cast<const std::byte*>(heads + 3 * piece_rows_);
    const int64_t width = head.columns * head.value_bytes;
    int64_t at = head.written.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < piece.rows; ++i, ++at, features += width) {
      while (at - head.read.load(std::memory_order_acquire) == ring_->rows()) {
        head.written.store(at, std::memory_order_release);
        if (has_ended(head.reader)) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      auto* const to = ring_->row(at);
      const std::array<int32_t, 4> facts = {heads[i], heads[piece_rows_ + i], heads[2 * piece_rows_ + i], 0};
      std::memcpy(to, facts.data(), sizeof(facts));
      std::memcpy(to + sizeof(facts), features, static_cast<size_t>(width));
    }
    head.written.store(at, std::memory_order_release);
    return true;
  }

  Device& device_;
  const std::vector<int32_t> layers_;
  std::unique_ptr<Ring> ring_;  // null on a dry device
  int64_t piece_rows_ = 0;
  std::vector<Piece> pieces_;
  Buffer zeros_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t filled_ = 0, written_ = 0;  // pieces
  bool ends_ = false;
  std::string failure_;
  std::thread writer_;
};

class FeatureSpec final : public ProposerSpec {
 public:
  FeatureSpec(ProposerFacts facts, std::string ring) : facts_(std::move(facts)), ring_(std::move(ring)) {}

  const ProposerFacts& facts() const override { return facts_; }
  Status check_target(const model::Decoder& target) const override {
    const auto layers = static_cast<int32_t>(target.layers.size());
    for (const int32_t layer : facts_.feature_layers) {
      if (layer < layers) continue;
      return failed_precondition("Features of layer " + std::to_string(layer) + " are asked for, but the target has " +
                                 std::to_string(layers) + " layers.");
    }
    return {};
  }
  Result<std::unique_ptr<Proposer>> load(const ProposerLoad& load) const override {
    if (load.group != nullptr) {
      return unimplemented("Features are streamed by one rank: leave out --tensor-parallel-size.");
    }
    return make_proposer(load.device, facts_.feature_layers, load.target.spec().hidden, load.target.activation(), ring_,
                         load.slots * load.longest_draft, load.rows);
  }

 private:
  const ProposerFacts facts_;
  const std::string ring_;
};

}  // namespace

Result<std::unique_ptr<Proposer>> make_proposer(Device& device, std::vector<int32_t> layers, int64_t hidden,
                                                DType dtype, const std::string& path, int32_t most_drafts,
                                                int32_t most_rows) {
  const int64_t columns = std::ssize(layers) * hidden;
  const auto value_bytes = static_cast<int64_t>(dtype_size(dtype));
  auto stream = std::make_unique<FeatureStream>(device, std::move(layers));
  VOLLEY_RETURN_IF_ERROR(stream->allocate(most_drafts));
  if (!device.stream().dry()) {
    // Before the ring: it belongs to the first engine that opens it, also to one that then has no memory.
    VOLLEY_RETURN_IF_ERROR(stream->allocate_pieces(row_bytes_of(columns, value_bytes), most_rows));
    VOLLEY_ASSIGN(auto ring, Ring::open(path, columns, value_bytes));
    stream->start(std::move(ring));
  }
  return std::unique_ptr<Proposer>(std::move(stream));
}

Result<std::shared_ptr<const ProposerSpec>> read_proposer(const std::string& dir) {
  VOLLEY_ASSIGN(const nlohmann::json json, families::read_json_file(dir + "/config.json"));
  const ConfigFields config(json, dir + "/config.json");
  ProposerFacts facts;
  facts.architecture = "FeatureStream";
  facts.proposals = 1;
  VOLLEY_ASSIGN(facts.feature_layers, config.integers("layers", 0, INT32_MAX));
  VOLLEY_ASSIGN(std::string ring, config.text("ring"));
  VOLLEY_RETURN_IF_ERROR(config.refuse_unread());
  return std::shared_ptr<const ProposerSpec>(std::make_shared<FeatureSpec>(std::move(facts), std::move(ring)));
}

}  // namespace volley::decode::features
