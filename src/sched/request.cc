#include "sched/request.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/page_hash.h"

namespace volley::sched {

Request::Request(Options options)
    : id_(options.id),
      space_(std::move(options.space)),
      tokens_(std::move(options.prompt)),
      prompt_length_(length()),
      max_tokens_(options.max_tokens),
      traits_(std::move(options.traits)) {
  keys_.swap(traits_.prompt_keys);
  VOLLEY_CHECK_EQ(keys().size(), tokens_.size());
  VOLLEY_CHECK_GT(prompt_length_, 0);
  if (traits_.shares_prompt) prompt_hash_ = kv::page_hash(kv::root_hash(space_), keys());
  VOLLEY_CHECK_GT(max_tokens_, 0);
}

uint64_t Request::age() const {
  VOLLEY_CHECK(has_started());
  return *age_;
}

void Request::set_age(uint64_t age) {
  VOLLEY_CHECK(!has_started());
  age_ = age;
}

int32_t Request::computed() const {
  if (decoding()) return length() - 1;
  const auto* prefilling = std::get_if<Prefilling>(&state_);
  return prefilling != nullptr ? prefilling->computed : 0;
}

const Resources& Request::resources() const {
  if (const auto* prefilling = std::get_if<Prefilling>(&state_)) return prefilling->resources;
  if (const auto* decoding = std::get_if<Decoding>(&state_)) return decoding->resources;
  refuse("use of resources");
}

void Request::start(Resources resources, int32_t cached) {
  expect<Waiting>("start");
  VOLLEY_CHECK_LE(cached, prefill_length());
  if (cached == prefill_length() && !new_prompt()) {
    state_ = Decoding{std::move(resources)};
  } else {
    VOLLEY_CHECK_LT(cached, prefill_length());  // a new prompt keeps a row that chooses
    state_ = Prefilling{std::move(resources), cached};
  }
}

void Request::advance(int32_t rows) {
  Prefilling& prefilling = expect<Prefilling>("advance");
  prefilling.computed += rows;
  VOLLEY_CHECK_LE(prefilling.computed, prefill_length());
  if (prefilling.computed < prefill_length()) return;
  VOLLEY_CHECK(!new_prompt());  // the last chunk chooses: commit() ends it
  Resources resources = std::move(prefilling.resources);
  state_ = Decoding{std::move(resources)};
}

void Request::commit(std::span<const TokenId> tokens) {
  VOLLEY_CHECK(!tokens.empty());
  VOLLEY_CHECK_LE(static_cast<int64_t>(tokens.size()), int64_t{remaining()});
  if (!decoding()) {
    Prefilling& prefilling = expect<Prefilling>("commit");
    VOLLEY_CHECK(new_prompt());
    VOLLEY_CHECK_EQ(tokens.size(), size_t{1});
    Resources resources = std::move(prefilling.resources);
    state_ = Decoding{std::move(resources)};
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (!keys_.empty()) keys_.insert(keys_.end(), tokens.begin(), tokens.end());
}

void Request::take_off(int32_t prefill_rows, bool chooses) {
  rows_under_way_ += prefill_rows;
  choices_under_way_ += chooses ? 1 : 0;
  VOLLEY_CHECK_LE(next_row(), std::max(prefill_length(), computed()));
}

void Request::land(int32_t prefill_rows, bool chooses) {
  rows_under_way_ -= prefill_rows;
  choices_under_way_ -= chooses ? 1 : 0;
  VOLLEY_CHECK_GE(rows_under_way_, 0);
  VOLLEY_CHECK_GE(choices_under_way_, 0);
}

Resources Request::stop() {
  if (!running()) refuse("stop");
  rows_under_way_ = choices_under_way_ = 0;
  Resources resources = std::move(this->resources());
  state_ = Waiting{};
  return resources;
}

template <typename State>
State& Request::expect(const char* event) {
  State* state = std::get_if<State>(&state_);
  if (state == nullptr) refuse(event);
  return *state;
}

void Request::refuse(const char* event) const {
  const char* state = decoding() ? "decoding" : prefilling() ? "prefilling" : "waiting";
  check_failed(__FILE__, __LINE__, "legal transition",
               "request " + std::to_string(id_) + ": " + event + " while " + state);
}

}  // namespace volley::sched
