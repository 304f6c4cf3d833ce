// A request's rules on its tokens inside the round. It makes masks along a drafted block from the grammar, the
// request's lists and its end ids, and applies the committed tokens to all three.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "decode/mask_source.h"
#include "decode/round.h"
#include "engine/run/token_rules.h"
#include "text/grammar.h"

namespace volley::engine {

// With a grammar the model ends the request by an end id, which is allowed exactly where the text is complete. Where
// the text is complete and no next token can be chosen (the model has no end id, ignore_eos, fewer than min_tokens
// outputs, lists that forbid it), the grammar ends the request, and the token chosen there is no output. Where the text
// is not complete and no token can be chosen, the request contradicts itself and fails.
//
// Threads: fill() on any, the rest on the engine's; while fill() runs, only give_up().
class GrammarMasks final : public decode::MaskSource {
 public:
  struct Limits {
    std::vector<TokenId> end_ids;  // as in the slot's limits; they count from min_tokens outputs on
    int32_t min_tokens = 0;
    int32_t vocab = 0;
  };

  // `matcher`: null without a grammar.
  GrammarMasks(std::unique_ptr<text::Matcher> matcher, std::optional<TokenRules> rules, Limits limits);

  void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override;
  void give_up(Why why) override;

  // Applies the tokens of the last fill()'s step. True: the grammar ended the request. kInvalidArgument: the grammar
  // grew too complex on this text, no token is left to choose, or fill() was late and given up. kUnavailable: no
  // processor was free for fill(). In all these cases `result` keeps only the tokens before that point, and is finite.
  Result<bool> commit(decode::RoundResult& result);

 private:
  bool finish_row(size_t row, const TokenRules::Place& place, uint32_t* words, int32_t mask_words);
  bool leaves_token(const uint32_t* words, int32_t mask_words, bool end_counts) const;

  std::unique_ptr<text::Matcher> matcher_;
  const std::optional<TokenRules> rules_;
  const Limits limits_;
  TokenId no_end_id_;                // the lowest token that is not an end id
  std::vector<uint32_t> end_words_;  // the end ids as a mask
  TokenRules::Place place_;          // after the committed tokens
  int32_t outputs_ = 0;              // committed outputs
  // Results of the last fill(): the row where the grammar ends the request, and the row where no token can be chosen.
  std::optional<size_t> end_, stuck_;
  std::vector<text::TextEnd> ends_;
  text::Matcher::Filled filled_;    // result of the last fill
  std::vector<TokenId> committed_;  // the matcher has not seen these; the next fill() passes them on, off this thread
  std::optional<Why> given_up_;
};

}  // namespace volley::engine
