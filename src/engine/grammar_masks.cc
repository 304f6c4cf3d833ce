#include "engine/grammar_masks.h"

#include <algorithm>

#include "base/check.h"

namespace volley::engine {

GrammarMasks::GrammarMasks(std::unique_ptr<text::Matcher> matcher, std::vector<TokenId> end_ids, int32_t min_tokens)
    : matcher_(std::move(matcher)), end_ids_(std::move(end_ids)), min_tokens_(min_tokens), no_end_id_(0) {
  while (std::ranges::count(end_ids_, no_end_id_) > 0) ++no_end_id_;
}

void GrammarMasks::fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) {
  const size_t stride = static_cast<size_t>(mask_words), rows = drafted.size() + 1;
  end_.reset();
  // Nothing behind an end id is ever committed.
  const auto is_end = [&](TokenId token) { return std::ranges::count(end_ids_, token) > 0; };
  const auto followed = static_cast<size_t>(std::ranges::find_if(drafted, is_end) - drafted.begin());
  ends_.assign(followed + 1, text::TextEnd::kNo);
  filled_ = {0, matcher_->commit(committed_)};
  committed_.clear();
  if (filled_.status.ok()) {
    filled_ = matcher_->masks_along(drafted.first(followed), words, mask_words, ends_.data());
  }
  const auto filled = static_cast<size_t>(filled_.rows);
  for (size_t row = 0; row < filled; ++row) allow_end(row, ends_[row], words + row * stride, mask_words);
  std::fill(words + filled * stride, words + rows * stride, ~0u);
}

void GrammarMasks::allow_end(size_t row, text::TextEnd end, uint32_t* words, int32_t mask_words) {
  if (end == text::TextEnd::kNo) return;
  const auto allow = [&](TokenId token) {
    if (token / 32 < mask_words) words[token / 32] |= 1u << (token % 32);
  };
  const bool counts = outputs_ + static_cast<int32_t>(row) >= min_tokens_;
  if (counts) std::ranges::for_each(end_ids_, allow);
  if (end == text::TextEnd::kMust && (!counts || end_ids_.empty())) {
    allow(no_end_id_);
    end_ = row;
  }
}

void GrammarMasks::give_up() {
  given_up_ = true;
  matcher_->stop();
}

Result<bool> GrammarMasks::commit(spec::RoundResult& result) {
  const auto keep = [&](size_t tokens) {
    result.tokens.resize(tokens);
    if (!result.logprobs.empty()) result.logprobs.resize(tokens);
    result.accepted = std::min(result.accepted, static_cast<int32_t>(tokens));
    result.ended = result.exhausted = false;
  };
  if (given_up_) {
    keep(0);
    return invalid_argument(
        "The grammar took too long to say which tokens may follow: make it simpler, or start the server with a larger "
        "--grammar-mask-timeout-ms.");
  }
  const bool ends = end_ && *end_ < result.tokens.size();
  if (ends) keep(*end_);
  Status status;
  if (const auto rows = static_cast<size_t>(filled_.rows); result.tokens.size() > rows) {
    VOLLEY_CHECK(!filled_.status.ok());
    status = filled_.status;
    keep(rows);
  }
  const size_t text = result.tokens.size() - (result.ended ? 1 : 0);
  committed_.assign(result.tokens.begin(), result.tokens.begin() + static_cast<std::ptrdiff_t>(text));
  VOLLEY_RETURN_IF_ERROR(status);
  outputs_ += static_cast<int32_t>(result.tokens.size());
  return ends;
}

}  // namespace volley::engine
