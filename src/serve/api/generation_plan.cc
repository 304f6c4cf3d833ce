#include "serve/api/generation_plan.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "serve/api/answer_size.h"
#include "serve/api/chat_input.h"
#include "serve/formats/answer_format.h"
#include "serve/formats/call_grammar.h"

namespace volley::serve {
namespace {

struct EncodedPrompt {
  std::string text;  // as rendered or sent, whole even if the ids were cut; empty for a prompt of ids
  std::vector<TokenId> ids;
  bool truncated = false;
  ChatInput chat = {};  // a chat's pictures
};

std::string_view prompt_field(const ApiRequest& request) {
  return request.kind == ApiKind::kChat ? request.chat.field : "prompt";
}

// The least room behind a prompt. An echo alone needs none: see score_whole_context().
int64_t wanted_output(const ApiRequest& request) {
  if (request.shape.echo_only) return 0;
  return request.max_tokens_given ? request.generate.max_tokens : 1;
}

// Number of kept prompt tokens, 0: all. The front is dropped, as in vLLM, because the question is at the end.
size_t kept_tokens(const Engine& engine, const ApiRequest& request) {
  if (request.truncate_prompt >= 0) return static_cast<size_t>(request.truncate_prompt);
  return static_cast<size_t>(std::max<int64_t>(1, engine.info().max_model_len - wanted_output(request)));
}

std::string context_is(const Engine& engine) {
  return "This model's maximum context length is " + std::to_string(engine.info().max_model_len) +
         " tokens, but the prompt ";
}

// Claude Code finds these words and numbers: it then asks again for fewer tokens, or makes the conversation shorter.
std::string message_too_long(const Engine& engine, const std::string& prompt) {
  return "prompt is too long: " + prompt + " tokens > " + std::to_string(engine.info().max_model_len) + " maximum";
}
std::string answer_too_long(int64_t prompt, int64_t output, int64_t most) {
  return "input length and `max_tokens` exceed context limit: " + std::to_string(prompt) + " + " +
         std::to_string(output) + " > " + std::to_string(most) +
         ", decrease input length or `max_tokens` and try again";
}

// Checks that the context holds the prompt and the requested output.
std::optional<ApiError> check_length(const Engine& engine, const ApiRequest& request, size_t prompt_tokens) {
  const auto prompt = static_cast<int64_t>(prompt_tokens);
  const int64_t most = engine.info().max_model_len;
  const int64_t output = wanted_output(request);
  if (prompt + output <= most) return std::nullopt;
  const std::string_view field = prompt_field(request);
  if (request.is_message) {
    return context_too_long(field, prompt < most ? answer_too_long(prompt, output, most)
                                                 : message_too_long(engine, std::to_string(prompt)));
  }
  const std::string start = context_is(engine) + "has " + std::to_string(prompt);
  return context_too_long(field, request.max_tokens_given && output > 0
                                     ? start + " and the output may take " + std::to_string(output) +
                                           ". Shorten the prompt or ask for fewer tokens."
                                 : output > 0 ? start + ", which leaves no room for output. Shorten the prompt."
                                              : start + ". Shorten the prompt.");
}

// Tokenising megabytes takes seconds, so a text far too long is read only until that shows.
std::optional<ApiError> encode_prompt(const PlanContext& context, const ApiRequest& request, EncodedPrompt& prompt) {
  const std::string field(prompt_field(request));
  ChatLimits limits;
  limits.read_named = context.read_named;
  limits.max_tokens = 2 * static_cast<size_t>(context.engine.info().max_model_len);
  limits.last_tokens = kept_tokens(context.engine, request);
  limits.cancelled = context.cancelled;
  // One more token shows that some were left out. Prompts that can never fit are refused below.
  if (limits.last_tokens > 0) limits.last_tokens = std::min(limits.last_tokens, limits.max_tokens) + 1;
  const bool add_special = request.add_special_tokens;
  if (request.kind == ApiKind::kChat) {
    auto chat = encode_chat(context.engine, *context.format.answers, request.chat, add_special, limits);
    if (!chat.ok()) return api_error(chat.error(), field);
    prompt.chat = std::move(*chat);
    prompt.text = std::move(prompt.chat.text);
    prompt.ids = std::move(prompt.chat.ids);
  } else {
    auto encoded = context.engine.encode_within(prompt.text, add_special, limits);
    if (!encoded.ok()) return api_error(encoded.error(), field);
    prompt.ids = std::move(*encoded);
  }
  if (limits.last_tokens == 0 && prompt.ids.size() > limits.max_tokens) {
    const std::string has = "more than " + std::to_string(limits.max_tokens);
    return context_too_long(field, request.is_message
                                       ? message_too_long(context.engine, has)
                                       : context_is(context.engine) + "has " + has + ". Shorten the prompt.");
  }
  return std::nullopt;
}

void truncate(const Engine& engine, const ApiRequest& request, EncodedPrompt& prompt) {
  const size_t keep = kept_tokens(engine, request);
  if (keep == 0 || prompt.ids.size() <= keep) return;
  prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - static_cast<std::ptrdiff_t>(keep));
  prompt.truncated = true;
}

ApiResult<std::vector<EncodedPrompt>> encode_prompts(const PlanContext& context, ApiRequest& request) {
  const Engine& engine = context.engine;
  const std::string field(prompt_field(request));
  std::vector<Prompt> sources = std::move(request.prompts);
  if (request.kind == ApiKind::kChat) sources.emplace_back();  // a text, which encode_prompt() renders
  std::vector<EncodedPrompt> prompts;
  for (Prompt& source : sources) {
    EncodedPrompt prompt;
    if (auto* ids = std::get_if<std::vector<TokenId>>(&source)) {
      prompt.ids = std::move(*ids);
    } else {
      prompt.text = std::move(std::get<std::string>(source));
      if (auto error = encode_prompt(context, request, prompt)) return *error;
    }
    if (prompt.ids.empty()) return invalid_field(field, "\"" + field + "\" gives no tokens; send some text.");
    truncate(engine, request, prompt);
    if (auto error = check_length(engine, request, prompt.ids.size())) return *error;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Checks the part of the answer that shows prompts; its growth is checked later.
std::optional<ApiError> check_size(const ApiRequest& request, const std::vector<EncodedPrompt>& prompts, size_t most) {
  size_t bytes = 0;
  for (const EncodedPrompt& prompt : prompts)
    bytes += shown_prompt_bytes(request, prompt.ids.size(), prompt.text.size());
  if (bytes <= most) return std::nullopt;
  const char* field = request.shape.prompt_logprobs >= 0 ? "prompt_logprobs"
                      : request.echo                     ? "echo"
                                                         : "return_token_ids";
  ApiError error = invalid_field(
      field, "What the answer shows of the prompts would take about " + std::to_string(bytes >> 20) + " MiB, but an " +
                 "answer may take " + std::to_string(most >> 20) +
                 ". Send the prompts in several requests, or ask for fewer log-probabilities or choices.");
  error.code = "response_too_large";
  return error;
}

// Each choice is an engine request of its own, with a copy of the client's data.
constexpr size_t kMaxHeldBytes = size_t{256} << 20;

ApiError too_many_copies(const ApiRequest& request) {
  return invalid_field(request.n > 1 ? "n" : prompt_field(request),
                       "Prompts, pictures, grammar, stop strings and biases of all choices together take more than " +
                           std::to_string(kMaxHeldBytes >> 20) + " MiB. Ask for fewer choices at once.");
}

// The content of the message that the model continues.
std::string continued_content(const Conversation& chat) {
  return chat.continue_final_message ? chat.messages.back().content.value_or("") : "";
}

ApiError two_constraints(const ApiRequest& request) {
  const std::string& field = request.tools.constrained_by;
  std::string first = "\"" + field + "\"";
  if (field == "tools") first += " (one is \"strict\")";
  if (field == "parallel_tool_calls") first += " (false)";
  return invalid_field(field,
                       first + " and \"" + request.grammar_field + "\" both constrain the output: send one of them.");
}

// Encodes a word as it is and with a space before it, which mostly gives other tokens.
std::optional<ApiError> encode_bad_words(const Engine& engine, ApiRequest& request) {
  constexpr size_t kMaxBadWordTokens = 4096;  // the engine's bound, whose error names no field
  auto& bad_words = request.generate.bad_words;
  size_t tokens = 0;
  for (const std::string& word : request.bad_words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    auto alone = engine.encode(bare, false), behind_space = engine.encode(" " + bare, false);
    if (!alone.ok()) return api_error(alone.error(), "bad_words");
    if (!behind_space.ok()) return api_error(behind_space.error(), "bad_words");
    if (alone->empty()) return invalid_field("bad_words", "\"bad_words\" holds a word that gives no tokens.");
    const bool is_tail =
        behind_space->size() >= alone->size() && std::equal(alone->rbegin(), alone->rend(), behind_space->rbegin());
    tokens += alone->size() + (is_tail ? 0 : behind_space->size());
    if (tokens > kMaxBadWordTokens) {
      return invalid_field("bad_words", "\"bad_words\" may take at most " + std::to_string(kMaxBadWordTokens) +
                                            " tokens, with a space before them and without.");
    }
    bad_words.push_back(std::move(*alone));
    if (!is_tail) bad_words.push_back(std::move(*behind_space));
  }
  return std::nullopt;
}

// The budget counts tokens between two markers, so both must be tokens.
std::optional<ApiError> plan_thinking(const PlanContext& context, ReasoningStart start, ApiRequest& request) {
  if (request.thinking_tokens < 0) return std::nullopt;
  if (!context.format.reasoning || !context.format.think_tokens) {
    return unsupported_field("thinking_token_budget",
                             "\"thinking_token_budget\" needs a model that thinks between two tokens, such as <think> "
                             "and </think>; this one does not (--reasoning-parser). Leave it out.");
  }
  const ThinkTags think = context.format.answers->think_tags();
  auto begin = context.engine.encode(think.token(), false), end = context.engine.encode(think.end, false);
  if (!begin.ok()) return api_error(begin.error(), "thinking_token_budget");
  if (!end.ok()) return api_error(end.error(), "thinking_token_budget");
  request.generate.thinking =
      ThinkingBudget{request.thinking_tokens, begin->front(), end->front(), start == ReasoningStart::kOpen};
  return std::nullopt;
}

// The engine chooses a token behind every prompt, so a prompt as long as the context has no room. To score one, its
// last token becomes the only allowed output: its log-probabilities are the same, bit for bit.
void score_whole_context(const Engine& engine, GenerateRequest& generate, PromptInfo& shown) {
  if (std::ssize(generate.prompt) < engine.info().max_model_len || generate.prompt.size() < 2) return;
  shown.last_is_chosen = true;
  generate.allowed_tokens = {generate.prompt.back()};
  generate.prompt.pop_back();
  generate.sampling.logprobs = generate.prompt_logprobs;
  generate.grammar.reset();
  generate.bad_words.clear();
  generate.thinking.reset();
}

// Joins `calls`, the grammar of the request's tools, and the client's constraint into one, or keeps the only one. Calls
// cannot have a text's form, so with required calls there is no text. Returns whether the client's grammar must allow
// calls.
ApiResult<bool> join_constraints(const OutputFormat& format, ReasoningStart start, std::optional<GrammarSpec>& calls,
                                 ApiRequest& request) {
  std::optional<GrammarSpec>& wish = request.generate.grammar;
  if (!wish) return false;
  if (may_hold_calls(*wish)) {
    if (calls && !request.tools.constrained_by.empty()) return two_constraints(request);
    calls.reset();  // the forms of custom tools' inputs give way
    return false;
  }
  if (request.tools.choice == ToolRequest::Choice::kRequired) {
    wish.reset();
    return false;
  }
  calls.reset();
  return may_call_instead(request.tools, format, start);
}

// Plans how the output is read, and the grammar for the request's tools.
std::optional<ApiError> plan_chat_output(const OutputFormat& format, ReasoningStart start, ApiRequest& request,
                                         ResponseInfo& info) {
  auto constraint = tool_grammar(request.tools, format, start);
  if (!constraint.ok()) return api_error(constraint.error(), "tools");
  std::optional<GrammarSpec>& grammar = *constraint;
  const auto joined = join_constraints(format, start, grammar, request);
  if (const auto* error = std::get_if<ApiError>(&joined)) return *error;
  const bool lets_calls_in = std::get<bool>(joined);
  std::set<std::string> custom;
  for (const Tool& tool : request.tools.tools) {
    if (tool.is_custom) custom.insert(tool.name);
  }
  if (!custom.empty()) {
    info.is_custom = [custom = std::move(custom)](const std::string& name) { return custom.contains(name); };
  }
  OutputParser::Options options;
  options.call_id_prefix = "call_" + info.id.substr(info.id.find_first_of("-_") + 1) + "_";
  options.reasoning = request.separate_reasoning ? start : ReasoningStart::kOff;
  options.format = tool_format(request.tools, format);
  if (auto& wish = request.generate.grammar; wish && lets_calls_in) {
    options.calls_or_json = true;
    wish = calls_or(std::move(*wish), request.tools, format, start);
  } else if (wish) {
    // A client's own grammar holds from the first character on.
    const bool own = wish->kind == GrammarSpec::Kind::kLark || wish->kind == GrammarSpec::Kind::kEbnf;
    if (own && options.reasoning == ReasoningStart::kOpen) options.reasoning = ReasoningStart::kClosed;
    if (!may_hold_calls(*wish)) options.format = options.format->without_calls();
    wish = after_reasoning(std::move(*wish), format, start);
  }
  if (options.format->calls()) options.types = tool_types(request.tools, format);
  options.format->plan(request.separate_reasoning && format.reasoning, request.generate, options);
  info.parser = options;
  if (grammar) {
    request.generate.grammar = std::move(grammar);
    request.grammar_field = "tools";
  }
  return std::nullopt;
}

// A token's text within a text: SentencePiece decoders strip a space at the start.
std::string text_within(const Engine& engine, TokenId token) {
  const TokenId twice[] = {token, token};
  const std::string alone = engine.decode({twice, 1}, false), both = engine.decode(twice, false);
  return both.starts_with(alone) ? both.substr(alone.size()) : alone;
}

// Whether the output continues the prompt's text. A chat's answer is a text of its own.
bool continues_text(const ApiRequest& request) {
  return request.kind == ApiKind::kCompletion || request.chat.continue_final_message;
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
    info.token_text = [&engine](TokenId id_) { return text_within(engine, id_); };
  }
  info.decode = [&engine](std::span<const TokenId> ids, bool skip_special) { return engine.decode(ids, skip_special); };
  return info;
}

}  // namespace

ApiResult<Generation::Plan> plan_generation(const PlanContext& context, ApiRequest request, std::string id) {
  const Engine& engine = context.engine;
  if (const Status effort = context.format.answers->check(request.chat); !effort.ok()) {
    return api_error(effort.error(), std::string(request.chat.effort_field));
  }
  auto encoded = encode_prompts(context, request);
  if (const auto* error = std::get_if<ApiError>(&encoded)) return *error;
  auto& prompts = std::get<0>(encoded);
  if (auto error = check_size(request, prompts, context.max_response_bytes)) return *error;
  Generation::Plan plan;
  plan.stream = request.stream;
  plan.max_response_bytes = context.max_response_bytes;
  plan.info = make_info(engine, request, std::move(id));
  if (request.kind == ApiKind::kChat) {
    OutputFormat format = context.format;
    format.answers = format.answers->after(engine, prompts.front().ids);
    plan.info.reasoning =
        format.answers->start(format.reasoning, prompts.front().text, continued_content(request.chat));
    if (auto error = plan_chat_output(format, plan.info.reasoning, request, plan.info)) return *error;
  }
  if (auto error = encode_bad_words(engine, request)) return *error;
  if (auto error = plan_thinking(context, plan.info.reasoning, request)) return *error;
  if (request.generate.grammar) plan.grammar_field = request.grammar_field;
  const bool show_ids = request.shape.token_ids || request.generate.prompt_logprobs >= 0;
  const std::string space = context.space + request.generate.cache_namespace;
  size_t held = 0;
  for (EncodedPrompt& prompt : prompts) {
    for (const PromptPicture& picture : prompt.chat.pictures)
      held += size_t(picture.width) * size_t(picture.height) * 3;
    if (held > kMaxHeldBytes) {
      return invalid_field(prompt_field(request), "The pictures have more than " + std::to_string(kMaxHeldBytes >> 20) +
                                                      " MiB of pixels. Send fewer or smaller ones.");
    }
    const Status read = read_pixels(engine, prompt.chat, space, context.cancelled);
    if (!read.ok()) return api_error(read.error(), std::string(prompt_field(request)));
    PromptInfo& shown = plan.info.prompts.emplace_back();
    shown.tokens = static_cast<int32_t>(prompt.ids.size());
    if (show_ids) shown.ids = prompt.ids;
    if (request.echo) {
      const bool as_sent = !prompt.text.empty() && !prompt.truncated;
      shown.echo = as_sent ? std::move(prompt.text) : engine.decode(prompt.ids, false);
    }
    GenerateRequest generate = request.generate;
    if (continues_text(request)) {
      shown.context.assign(prompt.ids.end() - std::min<std::ptrdiff_t>(std::ssize(prompt.ids), 16), prompt.ids.end());
      if (!generate.parts) generate.parts.emplace();  // without marks, as the engine does
    }
    if (!request.max_tokens_given && generate.max_tokens > 0) {
      // The schema's default is lowered to the room; a client's own value is an error instead.
      const int64_t room = engine.info().max_model_len - shown.tokens;
      generate.max_tokens = static_cast<int32_t>(std::min<int64_t>(generate.max_tokens, room));
      generate.min_tokens = std::min(generate.min_tokens, generate.max_tokens);
    }
    generate.prompt = std::move(prompt.ids);
    generate.pictures = std::move(prompt.chat.pictures);
    if (request.shape.echo_only) score_whole_context(engine, generate, shown);
    held += choice_bytes(generate) * static_cast<size_t>(request.n);
    if (held > kMaxHeldBytes) return too_many_copies(request);
    // A chat's whole answer shows its prompt once.
    const bool shown_once = request.kind == ApiKind::kChat && !request.stream;
    generate.shares_prompt = request.n > 1;
    for (int j = 0; j < request.n; ++j) {
      generate.sampling.choice_index = static_cast<uint32_t>(j);
      plan.choices.push_back(j + 1 < request.n ? generate : std::move(generate));
      plan.choices.back().cancelled = context.cancelled;
      if (shown_once) generate.prompt_logprobs = -1;
    }
  }
  return plan;
}

}  // namespace volley::serve
