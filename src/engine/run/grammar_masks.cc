#include "engine/run/grammar_masks.h"

#include <algorithm>

#include "base/check.h"

namespace volley::engine {
namespace {

void allow(TokenId token, uint32_t* words, int32_t mask_words) {
  if (token / 32 < mask_words) words[token / 32] |= 1u << (token % 32);
}

void allow_all(int32_t vocab, uint32_t* words, int32_t mask_words) {
  const int32_t whole = std::min(vocab / 32, mask_words);
  std::fill(words, words + whole, ~0u);
  std::fill(words + whole, words + mask_words, 0u);
  if (whole < mask_words && vocab % 32 != 0) words[whole] = (1u << (vocab % 32)) - 1;
}

}  // namespace

GrammarMasks::GrammarMasks(std::unique_ptr<text::Matcher> matcher, std::optional<TokenRules> rules, Limits limits)
    : matcher_(std::move(matcher)), rules_(std::move(rules)), limits_(std::move(limits)), no_end_id_(0) {
  while (std::ranges::count(limits_.end_ids, no_end_id_) > 0) ++no_end_id_;
  end_words_.resize(static_cast<size_t>(limits_.vocab) / 32 + 1);
  for (const TokenId token : limits_.end_ids) allow(token, end_words_.data(), static_cast<int32_t>(end_words_.size()));
  if (rules_) place_ = rules_->start();
}

void GrammarMasks::fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) {
  const size_t stride = static_cast<size_t>(mask_words), rows = drafted.size() + 1;
  end_.reset();
  stuck_.reset();
  // No token behind an end id is committed.
  const auto is_end = [&](TokenId token) { return std::ranges::count(limits_.end_ids, token) > 0; };
  const auto followed = static_cast<size_t>(std::ranges::find_if(drafted, is_end) - drafted.begin());
  ends_.assign(followed + 1, text::TextEnd::kNo);
  if (matcher_) {
    filled_ = {0, matcher_->commit(committed_)};
    committed_.clear();
    if (filled_.status.ok()) {
      filled_ = matcher_->masks_along(drafted.first(followed), words, mask_words, ends_.data());
    }
  } else {
    filled_ = {static_cast<int32_t>(followed + 1), {}};
    for (size_t row = 0; row <= followed; ++row) allow_all(limits_.vocab, words + row * stride, mask_words);
  }
  TokenRules::Place place = place_;
  size_t row = 0;
  for (bool goes_on = true; goes_on && row < static_cast<size_t>(filled_.rows); ++row) {
    if (rules_ && row > 0) rules_->advance(place, drafted[row - 1]);
    goes_on = finish_row(row, place, words + row * stride, mask_words);
  }
  std::fill(words + row * stride, words + rows * stride, ~0u);
}

// Adds the end ids and removes tokens that the lists forbid. Returns false if no token after this row can be committed.
bool GrammarMasks::finish_row(size_t row, const TokenRules::Place& place, uint32_t* words, int32_t mask_words) {
  const text::TextEnd end = ends_[row];
  const bool end_counts = outputs_ + static_cast<int32_t>(row) >= limits_.min_tokens;
  if (end != text::TextEnd::kNo && end_counts) {
    for (const TokenId token : limits_.end_ids) allow(token, words, mask_words);
  }
  if (rules_) rules_->restrict(place, words, mask_words);
  if (leaves_token(words, mask_words, end_counts)) return true;
  if (end == text::TextEnd::kNo) {
    stuck_ = row;
  } else {
    allow(no_end_id_, words, mask_words);
    end_ = row;
  }
  return false;
}

// Before min_tokens outputs the choice leaves end ids out, even if the mask allows them.
bool GrammarMasks::leaves_token(const uint32_t* words, int32_t mask_words, bool end_counts) const {
  for (int32_t i = 0; i < mask_words; ++i) {
    const uint32_t left_out = end_counts || i >= std::ssize(end_words_) ? 0 : end_words_[i];
    if ((words[i] & ~left_out) != 0) return true;
  }
  return false;
}

void GrammarMasks::give_up(Why why) {
  given_up_ = why;
  if (matcher_) matcher_->stop();
}

Result<bool> GrammarMasks::commit(decode::RoundResult& result) {
  // Drops the tokens after these.
  const auto keep = [&](size_t tokens) {
    result.tokens.resize(tokens);
    if (!result.logprobs.empty()) result.logprobs.resize(tokens);
    result.accepted = std::min(result.accepted, static_cast<int32_t>(tokens));
    result.ended = result.exhausted = false;
    result.finite = true;
  };
  if (given_up_) {
    keep(0);
    if (*given_up_ == Why::kBusy) {
      return Error{ErrorCode::kUnavailable,
                   "The machine was too busy to say in time which tokens may follow: send the request again, or start "
                   "the server with a larger --grammar-mask-timeout-ms."};
    }
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
  if (!result.finite && stuck_ == result.tokens.size()) {
    status = invalid_argument(
        "No token is left that the request allows here: its grammar, stop ids, min_tokens, bad words, allowed token "
        "ids "
        "and thinking budget contradict one another.");
    keep(result.tokens.size());
  }
  const size_t text = result.tokens.size() - (result.ended ? 1 : 0);
  committed_.assign(result.tokens.begin(), result.tokens.begin() + static_cast<std::ptrdiff_t>(text));
  for (const TokenId token : committed_) {
    if (rules_) rules_->advance(place_, token);
  }
  VOLLEY_RETURN_IF_ERROR(status);
  outputs_ += static_cast<int32_t>(result.tokens.size());
  return ends;
}

}  // namespace volley::engine
