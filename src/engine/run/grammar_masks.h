// What a request says about its tokens inside the round: masks along a drafted block, from its grammar and its own
// lists, with the ids that may end the request; and what the committed tokens mean for both.
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
// the text is complete and nothing that may follow can be chosen (the model has no end id, ignore_eos, fewer than
// min_tokens outputs, lists that leave it out), the grammar ends it: what is chosen there is no part of the output.
// Where the text is not complete and nothing can be chosen, what the request asks for contradicts itself, and it fails.
//
// fill() on any thread, the rest on the engine's; only give_up() while fill() runs.
class GrammarMasks final : public decode::MaskSource {
 public:
  struct Limits {
    std::vector<TokenId> end_ids;  // as the slot's limits have them; they count from min_tokens outputs on
    int32_t min_tokens = 0;
    int32_t vocab = 0;
  };

  // `matcher`: null without a grammar.
  GrammarMasks(std::unique_ptr<text::Matcher> matcher, std::optional<TokenRules> rules, Limits limits);

  void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override;
  void give_up(Why why) override;

  // Takes in what the step of the last fill() committed. True: the grammar ended the request. kInvalidArgument: the
  // grammar grew too complex on this text, nothing is left to choose, or fill() was late and given up, and the request
  // cannot go on. kUnavailable: no processor was free for it. In all these cases `result` keeps the tokens before
  // that alone, and is finite.
  Result<bool> commit(decode::RoundResult& result);

 private:
  bool finish_row(size_t row, const TokenRules::Place& place, uint32_t* words, int32_t mask_words);
  bool leaves_token(const uint32_t* words, int32_t mask_words, bool end_counts) const;

  std::unique_ptr<text::Matcher> matcher_;
  const std::optional<TokenRules> rules_;
  const Limits limits_;
  TokenId no_end_id_;                // the lowest token that is not one
  std::vector<uint32_t> end_words_;  // the end ids as a mask
  TokenRules::Place place_;          // after the committed tokens
  int32_t outputs_ = 0;              // committed
  // What the last fill found: the row where the grammar itself ends the request, and the one where nothing can be
  // chosen.
  std::optional<size_t> end_, stuck_;
  std::vector<text::TextEnd> ends_;
  text::Matcher::Filled filled_;  // of the last fill
  std::vector<TokenId>
      committed_;  // which the matcher has not seen yet: the next fill, off this thread, begins with it
  std::optional<Why> given_up_;
};

}  // namespace volley::engine
