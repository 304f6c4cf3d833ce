// Pictures on their way into prompts: what the prefix cache knows them by, where they stand, and the vision tower's
// work on them, cut into pieces that run between steps.
#pragma once

#include <volley/engine.h>

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/sha256.h"
#include "model/vision/spec.h"

namespace volley::engine {

using PictureVectors = std::shared_ptr<const std::vector<float>>;

// Hashes pictures: their pixels, sizes, rules and the cache's namespace, which shares none with others. Pixels that
// several requests share, as choices of one prompt do, are hashed once. Any thread.
class PictureHashes {
 public:
  std::vector<Sha256> of(const GenerateRequest& request, const PictureRules& rules);

 private:
  struct Known {
    std::weak_ptr<const std::vector<uint8_t>> rgb;  // whose bytes do not change
    std::vector<uint8_t> head;
    Sha256 hash;
  };
  std::mutex mutex_;
  std::deque<Known> known_;  // guarded by mutex_; the last few
};

// Turns the request's pictures into prompt_spans, still without vectors, and prompt_keys.
//
// Keys of a picture's tokens are negative, which no id of text is. The first nine hold the hash, 31 bits each, so two
// pictures whose first nine agree are the same; no hit of the prefix cache ends inside a picture
// (sched::RequestTraits), so fewer never decide. A picture of fewer tokens cannot hold the hash: it gets keys that
// nothing else has. REQUIRES: check_request(). positions: whether the model has M-RoPE.
void place_pictures(GenerateRequest& request, const PictureRules& rules, std::span<const Sha256> hashes,
                    bool positions);

// The pictures that requests of a worker wait for, oldest first, and the vectors of earlier ones within a budget of
// bytes. Threads: one at a time.
class Pictures {
 public:
  struct Config {
    std::optional<model::TowerSpec> tower;
    int64_t rows_of_unit = 1;
    double macs_per_second = 1;  // until a picture was measured
    int64_t cache_bytes = 0;
  };
  explicit Pictures(Config config) : config_(std::move(config)), rate_(config_.macs_per_second) {}

  // The vectors of a picture that are kept; null: the request now waits for them.
  PictureVectors find(const Sha256& hash, const PromptPicture& picture, RequestId waits);
  void forget(RequestId id);  // it waits no more
  void restart();             // the device has lost its work

  bool idle() const { return jobs_.empty(); }
  bool begun() const { return !jobs_.empty() && jobs_.front().next > 0; }
  // The oldest picture's next units, for about so many seconds, at least one (0: all of them). No value while its
  // vectors are to be taken.
  struct Piece {
    const PromptPicture* picture = nullptr;
    int32_t begin = 0, end = 0;
    double macs = 0, seconds = 0;
  };
  std::optional<Piece> next(double seconds) const;
  void enqueued(const Piece& piece);
  // The picture whose last unit was enqueued is done. Returns who waits for it.
  struct Made {
    Sha256 hash;
    PictureVectors vectors;
    std::vector<RequestId> waiting;
  };
  Made made(PictureVectors vectors, double seconds);

  int64_t made_so_far() const { return made_; }
  int64_t hits() const { return hits_; }
  double seconds() const { return seconds_; }

 private:
  struct Job {
    Sha256 hash;
    PromptPicture picture;
    std::vector<RequestId> waiting;
    int32_t next = 0;  // unit
  };
  struct Kept {
    Sha256 hash;
    PictureVectors vectors;
  };
  model::TowerUnits units_of(const PromptPicture& picture) const;
  void keep(const Sha256& hash, const PictureVectors& vectors);

  const Config config_;
  std::deque<Job> jobs_;
  std::list<Kept> kept_;  // least recently used first
  std::map<Sha256, std::list<Kept>::iterator> places_;
  int64_t kept_bytes_ = 0, made_ = 0, hits_ = 0;
  double rate_, seconds_ = 0;
};

}  // namespace volley::engine
