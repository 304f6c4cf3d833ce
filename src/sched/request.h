// One request as the scheduler sees it: its tokens, and a state that owns what the request holds. Threads: one.
//
//   Waiting ──start──▶ Prefilling ──advance, commit──▶ Decoding ──commit──▶ Decoding
//      ▲  └──start, when the cache has all that must be computed──▶ ▲          │
//      └─────────────────────stop (preempted, or about to go)──────────────────┘  (from Prefilling too)
//
// An event in a state that has no arrow for it is a CHECK failure that names both.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "kv/cache.h"
#include "sched/request_traits.h"
#include "sched/slot_pool.h"

namespace volley::sched {

// The resources of a running request. They return to their owners when this ends.
struct Resources {
  SlotLease slot;
  kv::Lease pages;
};

struct Waiting {};

// Computes the K and V of known tokens, in chunks.
struct Prefilling {
  Resources resources;
  int32_t computed = 0;  // leading tokens that have their K and V
};

// All tokens but the last one have their K and V.
struct Decoding {
  Resources resources;
};

class Request {
 public:
  struct Options {
    RequestId id = 0;
    std::string space;  // namespace in the prefix tree
    std::vector<TokenId> prompt;
    int32_t max_tokens = 0;
    RequestTraits traits = {};
  };

  explicit Request(Options options);
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  RequestId id() const { return id_; }
  // The order in which requests first started. REQUIRES: the request has started.
  uint64_t age() const;
  bool has_started() const { return age_.has_value(); }
  const std::string& space() const { return space_; }
  // Hash of space and the prompt's keys; different prompts may share it. 0 where no prompt is shared.
  uint64_t prompt_hash() const { return prompt_hash_; }
  std::span<const TokenId> tokens() const { return tokens_; }  // prompt, then output
  // A key for each position that has a token: the prefix cache compares these.
  std::span<const kv::CacheKey> keys() const { return keys_.empty() ? tokens_ : keys_; }
  std::span<const kv::CacheKey> computed_keys() const { return keys().first(static_cast<size_t>(computed())); }
  int32_t length() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t prompt_length() const { return prompt_length_; }
  int32_t remaining() const { return prompt_length_ + max_tokens_ - length(); }  // outputs that may still follow

  bool speculation() const { return traits_.speculation; }
  bool reuses_prefix() const { return traits_.reuses_prefix; }
  const std::vector<std::pair<int32_t, int32_t>>& unbroken() const { return traits_.unbroken; }
  const RequestTraits& traits() const { return traits_; }

  bool decoding() const { return std::holds_alternative<Decoding>(state_); }
  bool prefilling() const { return std::holds_alternative<Prefilling>(state_); }
  bool running() const { return decoding() || prefilling(); }
  int32_t computed() const;            // leading tokens that have their K and V; 0 while waiting
  const Resources& resources() const;  // REQUIRES: running()
  Resources& resources() { return const_cast<Resources&>(std::as_const(*this).resources()); }
  SlotId slot() const { return resources().slot.id(); }

  // Leading tokens that prefill computes: all of a new prompt, since its last row chooses the first output; for a
  // request with outputs, all but the last token, which begins the next verify step.
  int32_t prefill_length() const { return new_prompt() ? length() : length() - 1; }
  bool new_prompt() const { return length() == prompt_length_; }

  // A device that runs ahead gets a step planned before the results of the step before are in. These describe the
  // request after the steps under way, as far as the host can know:
  bool decodes_next() const { return decoding() || (prefilling() && next_row() == prefill_length()); }
  int32_t next_row() const { return computed() + rows_under_way_; }  // in prefill: leading tokens computed by then
  bool under_way() const { return rows_under_way_ > 0 || choices_under_way_ > 0; }  // a step without results has it
  int32_t remaining_next() const { return remaining() - choices_under_way_; }  // at most: a step brings one or more
  void take_off(int32_t prefill_rows, bool chooses);                           // a step with such a segment was planned
  void land(int32_t prefill_rows, bool chooses);                               // the results of that step are in

  void set_age(uint64_t age);  // REQUIRES: !has_started()

  // Events.
  void start(Resources resources, int32_t cached);  // the request runs, and `cached` leading tokens have their K and V
  void advance(int32_t rows);                       // a chunk was computed that chose nothing
  void commit(std::span<const TokenId> tokens);     // a new prompt's last chunk, or a verify step, chose these tokens
  Resources stop();                                 // the request waits again; the caller gets its resources

 private:
  template <typename State>
  State& expect(const char* event);
  [[noreturn]] void refuse(const char* event) const;

  RequestId id_;
  std::optional<uint64_t> age_;
  std::string space_;
  std::vector<TokenId> tokens_;
  std::vector<kv::CacheKey> keys_;  // empty: tokens_
  int32_t prompt_length_;
  uint64_t prompt_hash_ = 0;
  int32_t max_tokens_;
  RequestTraits traits_;
  int32_t rows_under_way_ = 0, choices_under_way_ = 0;
  std::variant<Waiting, Prefilling, Decoding> state_;
};

}  // namespace volley::sched
