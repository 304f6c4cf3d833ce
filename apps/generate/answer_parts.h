// Separates a chat's answer between control tokens (AnswerFormat::marks()) into content and thoughts. Any other text is
// shown unchanged, with the marks of thoughts. Threads: one.
#pragma once

#include <functional>
#include <optional>

#include "apps/client/request_pool.h"
#include "apps/generate/request_line.h"
#include "apps/generate/token_colours.h"
#include "serve/formats/output_format.h"
#include "serve/formats/output_parser.h"

namespace volley::apps {

// Passes on what a parser makes of an event, in spans of one origin.
void parse_event(const Event& event, TokenColours& colours, serve::OutputParser& parser,
                 const std::function<void(const serve::OutputDelta&, TokenColours::Origin)>& show);

// Puts an answer's content into its text, and its thoughts beside it.
void separate(const serve::OutputParser::Options& parts, Completion& completion);

class ChatRequests {
 public:
  explicit ChatRequests(const Engine& engine) : engine_(engine) {}

  struct Built {
    GenerateRequest request;
    std::optional<serve::OutputParser::Options> parts;  // nothing: the text is shown unchanged
  };
  // As build_request(). In such a chat stop strings count in content alone, and a call ends the answer.
  Result<Built> build(const Prompt& prompt, const RequestSettings& defaults, const RequestSettings& line);

 private:
  const Engine& engine_;
  std::optional<serve::OutputFormat> format_;  // set by the first chat
};

}  // namespace volley::apps
