#include "serve/generation_plan.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "serve/reasoning_grammar.h"

namespace volley::serve {
namespace {

struct EncodedPrompt {
  std::string text;  // as rendered or sent, whole even if the ids were cut; of ids that were sent, empty
  std::vector<TokenId> ids;
  bool truncated = false;
};

const char* prompt_field(ApiKind kind) {
  return kind == ApiKind::kChat ? "messages" : "prompt";
}

// From the front, as vLLM does: the end of a prompt is what it asks.
void truncate(const Engine& engine, const ApiRequest& request, EncodedPrompt& prompt) {
  if (request.truncate_prompt == 0) return;
  const int64_t output = request.max_tokens_given ? request.generate.max_tokens : 1;
  const int64_t room = std::max<int64_t>(1, engine.info().max_model_len - output);
  const auto keep = static_cast<size_t>(request.truncate_prompt > 0 ? request.truncate_prompt : room);
  if (prompt.ids.size() <= keep) return;
  prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - static_cast<std::ptrdiff_t>(keep));
  prompt.truncated = true;
}

std::string context_is(const Engine& engine) {
  return "This model's maximum context length is " + std::to_string(engine.info().max_model_len) +
         " tokens, but the prompt ";
}

// Of prompts that do not fit into the context, with what they ask for.
std::optional<ApiError> check_length(const Engine& engine, const ApiRequest& request, size_t prompt_tokens) {
  const auto prompt = static_cast<int64_t>(prompt_tokens);
  const int64_t most = engine.info().max_model_len;
  const int64_t output = request.max_tokens_given ? request.generate.max_tokens : 1;
  if (prompt + output <= most) return std::nullopt;
  const std::string start = context_is(engine) + "has " + std::to_string(prompt);
  return context_too_long(prompt_field(request.kind),
                          request.max_tokens_given ? start + " and the output may take " + std::to_string(output) +
                                                         ". Shorten the prompt or ask for fewer tokens."
                                                   : start + ", which leaves no room for output. Shorten the prompt.");
}

// The first `bytes` bytes at most, of whole UTF-8 sequences.
std::string_view beginning(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

// Megabytes take seconds to tokenise, and of a text that is far too long the beginning alone has too many tokens. With
// twice as many as fit, it does not matter how the place where it was cut is tokenised.
std::optional<ApiError> check_beginning(const Engine& engine, const ApiRequest& request, const std::string& text) {
  constexpr size_t kBytesOfToken = 16;  // text has some 2 to 6
  const auto most = static_cast<size_t>(engine.info().max_model_len);
  if (request.truncate_prompt != 0 || text.size() / (2 * kBytesOfToken) < most) return std::nullopt;
  const auto ids = engine.encode(beginning(text, most * kBytesOfToken), request.add_special_tokens);
  if (!ids.ok() || ids->size() < 2 * most) return std::nullopt;
  return context_too_long(prompt_field(request.kind),
                          context_is(engine) + "has more than " + std::to_string(2 * most) + ". Shorten the prompt.");
}

ApiResult<std::vector<EncodedPrompt>> encode_prompts(const Engine& engine, const ApiRequest& request) {
  const std::string field = prompt_field(request.kind);
  std::vector<Prompt> sources = request.prompts;
  if (request.kind == ApiKind::kChat) {
    auto rendered = engine.render_chat(request.chat);
    if (!rendered.ok()) return api_error(rendered.error(), field);
    sources.emplace_back(std::move(*rendered));
  }
  std::vector<EncodedPrompt> prompts;
  for (Prompt& source : sources) {
    EncodedPrompt prompt;
    if (auto* ids = std::get_if<std::vector<TokenId>>(&source)) {
      prompt.ids = std::move(*ids);
    } else {
      prompt.text = std::move(std::get<std::string>(source));
      if (auto error = check_beginning(engine, request, prompt.text)) return *error;
      auto encoded = engine.encode(prompt.text, request.add_special_tokens);
      if (!encoded.ok()) return api_error(encoded.error(), field);
      prompt.ids = std::move(*encoded);
    }
    if (prompt.ids.empty()) return invalid_field(field, "\"" + field + "\" gives no tokens; send some text.");
    truncate(engine, request, prompt);
    if (auto error = check_length(engine, request, prompt.ids.size())) return *error;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// The content of the message that the model continues.
std::string continued_content(const ChatMessages& chat) {
  if (!chat.continue_final_message) return "";
  const auto messages = nlohmann::json::parse(chat.messages_json);
  const auto content = messages.back().find("content");
  return content != messages.back().end() && content->is_string() ? content->get<std::string>() : "";
}

ApiError two_constraints(const ApiRequest& request) {
  const std::string& field = request.tools.constrained_by;
  std::string first = "\"" + field + "\"";
  if (field == "tools") first += " (one is \"strict\")";
  if (field == "parallel_tool_calls") first += " (false)";
  return invalid_field(field,
                       first + " and \"" + request.grammar_field + "\" both constrain the output: send one of them.");
}

// How the output is read, and the grammar that the request's tools ask for.
std::optional<ApiError> plan_chat_output(const OutputFormat& format, const EncodedPrompt& prompt, ApiRequest& request,
                                         ResponseInfo& info) {
  const ReasoningStart start = reasoning_start(format, prompt.text, continued_content(request.chat));
  auto constraint = tool_grammar(request.tools, format, start);
  if (!constraint.ok()) return api_error(constraint.error(), "tools");
  std::optional<GrammarSpec>& grammar = *constraint;
  if (grammar && request.generate.grammar) return two_constraints(request);
  OutputParser::Options options;
  options.call_id_prefix = "call_" + info.id.substr(info.id.find('-') + 1) + "_";
  options.reasoning = request.separate_reasoning ? start : ReasoningStart::kOff;
  if (auto& wish = request.generate.grammar) {
    const auto kind = wish->kind;
    // A grammar of the client's own holds from the first character on, and may be one of calls. JSON or one of a few
    // texts is what the answer after the reasoning must be, and nothing else.
    const bool own = kind == GrammarSpec::Kind::kLark || kind == GrammarSpec::Kind::kEbnf;
    if (own && options.reasoning == ReasoningStart::kOpen) options.reasoning = ReasoningStart::kClosed;
    if (own || kind == GrammarSpec::Kind::kRegex) options.tools = tool_format(request.tools, format);
    wish = after_reasoning(std::move(*wish), format, start);
  } else {
    options.tools = tool_format(request.tools, format);
  }
  if (options.tools != ToolFormat::kNone) options.types = tool_types(request.tools, format);
  if (options.tools != ToolFormat::kNone || options.reasoning != ReasoningStart::kOff) info.parser = options;
  if (grammar) {
    request.generate.grammar = std::move(grammar);
    request.grammar_field = "tools";
  }
  return std::nullopt;
}

ResponseInfo make_info(const Engine& engine, const ApiRequest& request, std::string id) {
  ResponseInfo info;
  info.kind = request.kind;
  info.id = std::move(id);
  info.model = request.model;
  info.created = static_cast<int64_t>(std::time(nullptr));
  info.n = request.n;
  info.logprobs = request.generate.sampling.logprobs >= 0;
  info.echo_logprobs = request.echo ? request.generate.sampling.logprobs : -1;
  info.shape = request.shape;
  info.stop_token_ids = request.generate.stop_token_ids;
  if (request.shape.tokens_as_ids) {
    info.token_text = [](TokenId id_) { return "token_id:" + std::to_string(id_); };
  } else {
    info.token_text = [&engine](TokenId id_) { return engine.decode({&id_, 1}, false); };
  }
  info.visible_text = [&engine](TokenId id_) { return engine.decode({&id_, 1}, true); };
  return info;
}

}  // namespace

ApiResult<Generation::Plan> plan_generation(const Engine& engine, const OutputFormat& format, ApiRequest request,
                                            std::string id) {
  auto encoded = encode_prompts(engine, request);
  if (const auto* error = std::get_if<ApiError>(&encoded)) return *error;
  auto& prompts = std::get<0>(encoded);
  Generation::Plan plan;
  plan.stream = request.stream;
  plan.info = make_info(engine, request, std::move(id));
  if (request.kind == ApiKind::kChat) {
    if (auto error = plan_chat_output(format, prompts.front(), request, plan.info)) return *error;
  }
  if (request.generate.grammar) plan.grammar_field = request.grammar_field;
  const bool show_ids = request.shape.token_ids || request.generate.prompt_logprobs >= 0;
  for (EncodedPrompt& prompt : prompts) {
    PromptInfo& shown = plan.info.prompts.emplace_back();
    shown.tokens = static_cast<int32_t>(prompt.ids.size());
    if (show_ids) shown.ids = prompt.ids;
    if (request.echo) {
      const bool as_sent = !prompt.text.empty() && !prompt.truncated;
      shown.echo = as_sent ? std::move(prompt.text) : engine.decode(prompt.ids, false);
    }
    GenerateRequest generate = request.generate;
    if (!request.max_tokens_given && generate.max_tokens > 0) {
      // The schema's own default gives way to the context; a client's wish is an error instead.
      const int64_t room = engine.info().max_model_len - shown.tokens;
      generate.max_tokens = static_cast<int32_t>(std::min<int64_t>(generate.max_tokens, room));
      generate.min_tokens = std::min(generate.min_tokens, generate.max_tokens);
    }
    generate.prompt = std::move(prompt.ids);
    // The whole answer of a chat shows its prompt once.
    const bool shown_once = request.kind == ApiKind::kChat && !request.stream;
    for (int j = 0; j < request.n; ++j) {
      generate.sampling.choice_index = static_cast<uint32_t>(j);
      plan.choices.push_back(generate);
      if (shown_once) generate.prompt_logprobs = -1;
    }
  }
  return plan;
}

}  // namespace volley::serve
