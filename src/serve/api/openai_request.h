// Checks the bodies of POST /v1/chat/completions and /v1/completions, and reads them into requests. Pure functions;
// generation_plan.cc does what needs the model (chat template, tokenizer, context length).
#pragma once

#include <volley/engine.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "serve/api/conversation.h"
#include "serve/api/hosted_tools.h"
#include "serve/api/tool_choice.h"
#include "serve/json/errors.h"

namespace volley::serve {

enum class ApiKind { kChat, kCompletion };

// Rules for checking a request. Borrowed for a call.
struct RequestRules {
  const EngineInfo& info;
  const std::vector<std::string>& served_models;  // the first is the default
  int max_n = 128;
  int max_choices = 1024;  // prompts × n
  size_t max_response_bytes = size_t{64} << 20;
  bool refuse_hosted_tools = false;  // see HostedTools
  bool open_objects = false;         // default for schemas
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

// Decides what an answer contains beside its text.
struct ResponseShape {
  bool include_usage = false;     // streams: a last chunk with the usage
  bool continuous_usage = false;  // streams: the usage so far in every chunk
  bool include_stop = false;      // the text includes the stop string or token that ended it
  bool echo_only = false;         // the prompt without an output
  bool token_ids = false;         // for prompt and output
  bool tokens_as_ids = false;     // log-probabilities name tokens "token_id:5" instead of by text
  int32_t prompt_logprobs = -1;   // -1: none; k: the k highest at each position of the prompt
  bool tokens_per_step = false;   // tokens that each verify step committed
  bool blocks = false;            // streams: every chunk reports its step's drafted and accepted tokens
  bool reasoning = true;          // false: thoughts are left out
  bool skip_special_tokens = true;
};

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;
  Conversation chat;            // for kChat
  std::vector<Prompt> prompts;  // for kCompletion: at least one
  bool add_special_tokens = false;
  ToolRequest tools;                   // for kChat
  bool separate_reasoning = true;      // for kChat; false: reasoning stays in the content, as generated
  GenerateRequest generate;            // all but the prompt, the choice index and the grammar of `tools`
  std::string grammar_field;           // the source of generate.grammar
  bool max_tokens_given = false;       // by the client; the context must then hold them
  bool is_message = false;             // of /v1/messages, whose clients read Anthropic's words for lengths
  std::vector<std::string> bad_words;  // not yet tokenised
  int32_t thinking_tokens = -1;        // -1: unlimited
  int32_t truncate_prompt = 0;         // keep this many tokens at the end of a prompt; -1: as many as fit; 0: all
  int n = 1;
  bool stream = false;
  bool echo = false;
  ResponseShape shape;
  std::vector<std::string> ignored_fields;  // inert or unknown ones, for the log
  std::set<std::string> ignored_tools;      // types of left-out hosted tools, for the log and a header
  Notes notes;                              // on input that the model reads otherwise than sent
};

ApiResult<ApiRequest> parse_chat_request(std::string_view body, const RequestRules& rules);
ApiResult<ApiRequest> parse_completion_request(std::string_view body, const RequestRules& rules);

// Reads the fields that another chat API shares with chat completions, after that API's reader has read `taken`.
// `request` holds what that reader found, conversation and tools included. `body`: the JSON text of `object`.
ApiResult<ApiRequest> read_shared_fields(const nlohmann::json& object, std::set<std::string_view> taken,
                                         std::string_view body, const RequestRules& rules,
                                         const std::optional<ToolChoice>& choice, ApiRequest request);

// Every field that this endpoint's parser reads, refused ones included, for openapi.json.
std::set<std::string_view> known_fields(ApiKind kind, const RequestRules& rules);

}  // namespace volley::serve
