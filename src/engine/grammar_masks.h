// A request's grammar inside the round: masks along a drafted block with the ids that may end the request, and what the
// committed tokens mean for the grammar.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "spec/mask_source.h"
#include "spec/round.h"
#include "text/grammar.h"

namespace volley::engine {

// The model ends the request by an end id, which is allowed exactly where the text is complete. Where the text must end
// and no end id can be chosen (the model has none, ignore_eos, or fewer than min_tokens outputs), the grammar ends it:
// what is chosen there is no part of the output.
//
// fill() on any thread, the rest on the engine's; only give_up() while fill() runs.
class GrammarMasks final : public spec::MaskSource {
 public:
  // end_ids: as the slot's limits have them; they count from min_tokens outputs on.
  GrammarMasks(std::unique_ptr<text::Matcher> matcher, std::vector<TokenId> end_ids, int32_t min_tokens);

  void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override;
  void give_up() override;

  // Takes in what the step of the last fill() committed. True: the grammar ended the request. kInvalidArgument: the
  // grammar grew too complex on this text, or fill() was given up, and the request cannot go on. In all these cases
  // `result` keeps the tokens before that alone.
  Result<bool> commit(spec::RoundResult& result);

 private:
  void allow_end(size_t row, text::TextEnd end, uint32_t* words, int32_t mask_words);

  std::unique_ptr<text::Matcher> matcher_;
  std::vector<TokenId> end_ids_;
  int32_t min_tokens_;
  TokenId no_end_id_;          // the lowest token that is not one
  int32_t outputs_ = 0;        // committed
  std::optional<size_t> end_;  // of the last fill: the row where the grammar itself ends the request
  std::vector<text::TextEnd> ends_;
  text::Matcher::Filled filled_;  // of the last fill
  std::vector<TokenId>
      committed_;  // which the matcher has not seen yet: the next fill, off this thread, begins with it
  bool given_up_ = false;
};

}  // namespace volley::engine
