// What an event of one choice adds to its answer, in the shape that the request asked for. Pure; one thread at a time.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/harmony.h"
#include "serve/logprobs_json.h"
#include "serve/output_parser.h"
#include "serve/reasoning_counter.h"
#include "serve/response_info.h"

namespace volley::serve {

class ChoiceOutput {
 public:
  struct News {
    OutputDelta delta;                       // text in delta.content where nothing is parsed
    std::vector<OutputDelta> in_order;       // instead of it, if info.in_order: each is one kind of thing
    nlohmann::ordered_json logprobs;         // null: none
    nlohmann::ordered_json prompt_logprobs;  // null: none
    std::vector<TokenId> tokens;             // if asked for
    nlohmann::ordered_json volley;           // null: nothing was asked for
    bool first = false, last = false;
  };

  // `info` must outlive it.
  ChoiceOutput(const ResponseInfo& info, int index);

  News read(const Event& event);

  int64_t completion_tokens() const { return completion_tokens_; }                                 // so far
  int64_t reasoning_tokens() const { return harmony_ ? harmony_->tokens() : thoughts_.tokens(); }  // so far
  const char* finish_reason() const;           // REQUIRES: the last event was read
  nlohmann::ordered_json stop_reason() const;  // vLLM's: the stop string or id of the client's, "repetition_detected";
                                               // "timeout"; or null
  const std::optional<Finish>& finish() const { return finish_; }

 private:
  void parse(std::string text, const std::vector<Event::Mark>& marks, News& news);
  void parse_in_order(std::string_view text, News& news);
  void take(OutputDelta delta, News& news) const;
  std::string text_of(const Event& event, bool first) const;
  void add_logprobs(const Event& event, News& news);
  void add_prompt_logprobs(const Event& event, News& news);
  void count_thoughts(const Event& event);
  nlohmann::ordered_json block_json(const Event& event) const;
  nlohmann::ordered_json final_json() const;

  const ResponseInfo& info_;
  const PromptInfo& prompt_;
  LogprobsWriter logprobs_writer_{info_, prompt_};
  ReasoningCounter thoughts_;
  std::optional<HarmonyCounter> harmony_;  // instead of thoughts_
  std::optional<OutputParser> parser_;
  bool begun_ = false;
  int64_t completion_tokens_ = 0;
  std::optional<Finish> finish_;
};

}  // namespace volley::serve
