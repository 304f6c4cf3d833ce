// Turns an event of one choice into the parts of an answer that the request asked for. Pure; one thread at a time.
#pragma once

#include <volley/engine.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/api/custom_tool.h"
#include "serve/api/logprobs_json.h"
#include "serve/formats/output_parser.h"
#include "serve/formats/reasoning_counter.h"
#include "serve/responses/response_info.h"

namespace volley::serve {

class ChoiceOutput {
 public:
  struct News {
    OutputDelta delta;                       // a single text without a parser
    nlohmann::ordered_json logprobs;         // or null
    nlohmann::ordered_json prompt_logprobs;  // or null
    std::vector<TokenId> tokens;             // if asked for
    nlohmann::ordered_json volley;           // null: not asked for
    bool first = false, last = false;
  };

  // `info` must outlive it.
  ChoiceOutput(const ResponseInfo& info, int index);

  News read(const Event& event);

  int64_t completion_tokens() const { return completion_tokens_; }                  // so far
  int64_t reasoning_tokens() const { return thoughts_ ? thoughts_->tokens() : 0; }  // so far
  const char* finish_reason() const;                                                // REQUIRES: the last event was read
  // vLLM's: the client's own stop string or id, "repetition_detected", "timeout", or null
  nlohmann::ordered_json stop_reason() const;
  const std::optional<Finish>& finish() const { return finish_; }

 private:
  void end_input(OutputDelta& out);
  void parse(std::string text, const std::vector<Event::Mark>& marks, News& news);
  void take(OutputDelta delta, News& news);
  bool is_mark(TokenId token) const;  // the format has this token, and text does not show it
  std::string text_of(const Event& event, bool first) const;
  void add_logprobs(const Event& event, News& news);
  void add_prompt_logprobs(const Event& event, News& news);
  void count_thoughts(const Event& event);
  nlohmann::ordered_json block_json(const Event& event) const;
  nlohmann::ordered_json final_json() const;

  const ResponseInfo& info_;
  const PromptInfo& prompt_;
  LogprobsWriter logprobs_writer_{info_, prompt_};
  std::unique_ptr<ThoughtCounter> thoughts_;  // set with parser_
  std::optional<OutputParser> parser_;
  std::optional<CustomInput> input_;  // input of the current call of a custom tool
  int call_ = -1;                     // index of that call
  bool begun_ = false;
  int64_t completion_tokens_ = 0;
  std::optional<Finish> finish_;
};

}  // namespace volley::serve
