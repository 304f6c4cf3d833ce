#include "engine/run/pictures.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/mix.h"

namespace volley::engine {
namespace {

constexpr size_t kMostKnown = 64;  // pixels whose hashes are remembered
constexpr int kKeyBits = 31, kHashBits = 256;
constexpr int64_t kHashTokens = (kHashBits + kKeyBits - 1) / kKeyBits;

// Bits [31 token, 31 token + 31) of the hash, and of zeros behind it.
uint32_t bits_of(const Sha256& hash, int64_t token) {
  uint32_t bits = 0;
  for (int64_t i = token * kKeyBits; i < (token + 1) * kKeyBits; ++i) {
    const bool bit = i < kHashBits && (hash[static_cast<size_t>(i / 8)] >> (i % 8) & 1) != 0;
    bits = bits << 1 | (bit ? 1u : 0u);
  }
  return bits;
}

uint64_t drawn_once() {
  static std::atomic<uint64_t> next{(uint64_t{std::random_device()()} << 32) | std::random_device()()};
  return next.fetch_add(1);
}

void put_keys(const Sha256& hash, std::span<TokenId> keys) {
  uint64_t seed = 0;
  std::memcpy(&seed, hash.data(), sizeof(seed));
  const bool holds_hash = std::ssize(keys) >= kHashTokens;
  if (!holds_hash) seed = drawn_once();
  for (int64_t i = 0; i < std::ssize(keys); ++i) {
    const bool of_hash = holds_hash && i < kHashTokens;
    const uint32_t bits = of_hash
                              ? bits_of(hash, i)
                              : static_cast<uint32_t>(mix_bits(seed + kSplitMixStep * static_cast<uint64_t>(i + 1)));
    keys[static_cast<size_t>(i)] = -1 - static_cast<TokenId>(bits & 0x7fffffff);
  }
}

}  // namespace

std::vector<Sha256> PictureHashes::of(const GenerateRequest& request, const PictureRules& rules) {
  std::vector<Sha256> hashes;
  for (const PromptPicture& picture : request.pictures) {
    const int32_t sizes[] = {picture.width, picture.height, rules.patch_size, rules.merge_size};
    std::vector<uint8_t> head(sizeof(sizes) + sizeof(rules.mean) + sizeof(rules.std));
    std::memcpy(head.data(), sizes, sizeof(sizes));
    std::memcpy(head.data() + sizeof(sizes), rules.mean.data(), sizeof(rules.mean));
    std::memcpy(head.data() + sizeof(sizes) + sizeof(rules.mean), rules.std.data(), sizeof(rules.std));
    head.insert(head.end(), request.cache_namespace.begin(), request.cache_namespace.end());
    const auto known = [&](const Known& one) { return one.rgb.lock() == picture.rgb && one.head == head; };
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = std::ranges::find_if(known_, known); found != known_.end()) {
        hashes.push_back(found->hash);
        continue;
      }
    }
    hashes.push_back(content_hash(head, *picture.rgb));
    const std::lock_guard lock(mutex_);
    known_.push_back({picture.rgb, std::move(head), hashes.back()});
    if (known_.size() > kMostKnown) known_.pop_front();
  }
  return hashes;
}

void place_pictures(GenerateRequest& request, const PictureRules& rules, std::span<const Sha256> hashes,
                    bool positions) {
  request.prompt_keys = request.prompt;
  int32_t at = 0, next = 0;  // a token, and its rotary position
  for (size_t i = 0; i < request.pictures.size(); ++i) {
    const PromptPicture& picture = request.pictures[i];
    const int32_t rows = picture.height / rules.token_side(), columns = picture.width / rules.token_side();
    PromptSpan& span = request.prompt_spans.emplace_back();
    span.begin = picture.begin;
    span.end = picture.begin + rows * columns;
    put_keys(hashes[i], std::span(request.prompt_keys).subspan(span.begin, rows * columns));
    next += span.begin - at;
    at = span.end;
    if (positions) {
      for (int32_t j = 0; j < rows * columns; ++j)
        span.positions.push_back({next, next + j / columns, next + j % columns});
      next += std::max(rows, columns);
    } else {
      next += rows * columns;
    }
  }
}

model::TowerUnits Pictures::units_of(const PromptPicture& picture) const {
  VOLLEY_CHECK(config_.tower.has_value());
  const int64_t patch = config_.tower->rules.patch_size;
  return {*config_.tower, picture.width / patch * (picture.height / patch), config_.rows_of_unit};
}

PictureVectors Pictures::find(const Sha256& hash, const PromptPicture& picture, RequestId waits) {
  if (const auto found = places_.find(hash); found != places_.end()) {
    kept_.splice(kept_.end(), kept_, found->second);
    ++hits_;
    return found->second->vectors;
  }
  const auto job = std::ranges::find(jobs_, hash, &Job::hash);
  if (job == jobs_.end()) {
    jobs_.push_back({hash, picture, {waits}});
  } else {
    ++hits_;
    if (job->waiting.back() != waits) job->waiting.push_back(waits);
  }
  return nullptr;
}

void Pictures::forget(RequestId id) {
  for (Job& job : jobs_) std::erase(job.waiting, id);
  std::erase_if(jobs_, [](const Job& job) { return job.waiting.empty(); });
}

void Pictures::restart() {
  if (!jobs_.empty()) jobs_.front().next = 0;
}

std::optional<Pictures::Piece> Pictures::next(double seconds) const {
  VOLLEY_CHECK(!jobs_.empty());
  const Job& job = jobs_.front();
  const model::TowerUnits units = units_of(job.picture);
  if (job.next == units.count()) return std::nullopt;
  Piece piece = {&job.picture, job.next, job.next};
  do {
    piece.macs += units.macs(piece.end++);
  } while (piece.end < units.count() && (seconds <= 0 || piece.macs + units.macs(piece.end) <= seconds * rate_));
  piece.seconds = piece.macs / rate_;
  return piece;
}

void Pictures::enqueued(const Piece& piece) {
  jobs_.front().next = piece.end;
}

Pictures::Made Pictures::made(PictureVectors vectors, double seconds) {
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  const model::TowerUnits units = units_of(job.picture);
  double macs = 0;
  for (int32_t unit = 0; unit < units.count(); ++unit) macs += units.macs(unit);
  if (seconds > 0) rate_ = macs / seconds;
  seconds_ += seconds;
  ++made_;
  Made done = {job.hash, std::move(vectors), std::move(job.waiting)};
  keep(done.hash, done.vectors);
  return done;
}

void Pictures::keep(const Sha256& hash, const PictureVectors& vectors) {
  const auto bytes_of = [](const PictureVectors& kept) { return std::ssize(*kept) * int64_t{sizeof(float)}; };
  if (bytes_of(vectors) > config_.cache_bytes) return;
  places_[hash] = kept_.insert(kept_.end(), {hash, vectors});
  for (kept_bytes_ += bytes_of(vectors); kept_bytes_ > config_.cache_bytes; kept_.pop_front()) {
    kept_bytes_ -= bytes_of(kept_.front().vectors);
    places_.erase(kept_.front().hash);
  }
}

}  // namespace volley::engine
