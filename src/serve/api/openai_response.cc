#include "serve/api/openai_response.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "serve/api/choice_output.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
std::string frame(const Json& json) {
  return "data: " + dump(json) + "\n\n";
}

Json envelope(const ResponseInfo& info, const char* object) {
  return {{"id", info.id},
          {"object", object},
          {"created", info.created},
          {"model", info.model},
          {"system_fingerprint", nullptr}};
}

// Leaves out the token that the engine had to choose for an echo, which may be the prompt's last.
Usage counted(const ResponseInfo& info, int choice, const Finish& finish) {
  Usage usage = finish.usage;
  if (!info.shape.echo_only) return usage;
  usage.prompt_tokens += info.prompt_of(choice).last_is_chosen ? 1 : 0;
  usage.completion_tokens = 0;
  return usage;
}

// Writes vLLM's current name, and the older one that it and others used.
void add_reasoning(std::string reasoning, Json& message) {
  if (reasoning.empty()) return;
  message["reasoning"] = reasoning;
  message["reasoning_content"] = std::move(reasoning);
}

const char* type_of(const OutputDelta::ToolCall& call) {
  return call.is_custom ? "custom" : "function";
}
const char* text_name(const OutputDelta::ToolCall& call) {
  return call.is_custom ? "input" : "arguments";
}

template <typename Choice>
class ChoicesWriter : public ResponseWriter {
 public:
  ChoicesWriter(ResponseInfo info, int choices) : info_(std::move(info)), usage_(info_.n) {
    choices_.reserve(static_cast<size_t>(choices));
    for (int index = 0; index < choices; ++index) choices_.emplace_back(info_, index);
  }
  const UsageTotals& usage() const override { return usage_; }

 protected:
  const ResponseInfo info_;
  std::vector<Choice> choices_;
  UsageTotals usage_;
};

// The sum of a choice's deltas.
struct Message {
  std::string content, reasoning;
  std::vector<OutputDelta::ToolCall> calls;

  void add(OutputDelta delta) {
    content += delta.content();
    reasoning += delta.reasoning();
    for (OutputDelta::ToolCall& call : delta.tool_calls()) {
      if (!call.id.empty()) {
        calls.push_back(std::move(call));
      } else {
        calls.back().arguments += call.arguments;
      }
    }
  }
};

// An object of growing lists, kept as text, because a tree takes many times the memory.
class Lists {
 public:
  void add(const Json& more) {
    for (const auto& [key, value] : more.items()) {
      std::string* text = find(key);
      if (!text) text = &members_.emplace_back(key, std::string()).second;
      if (!value.is_array()) {
        *text = dump(value);
        continue;
      }
      if (text->empty()) *text = "[";
      if (!value.empty() && text->size() > 1) *text += ',';
      const std::string elements = dump(value);
      text->append(elements, 1, elements.size() - 2);
    }
  }

  // Appends `null` if no list has grown.
  void append_to(std::string& out) const {
    if (members_.empty()) {
      out += "null";
      return;
    }
    char before = '{';
    for (const auto& [key, text] : members_) {
      (out += before).append(dump(key)).append(":").append(text);
      if (text.front() == '[') out += ']';
      before = ',';
    }
    out += '}';
  }

 private:
  std::string* find(const std::string& key) {
    for (auto& [name, text] : members_) {
      if (name == key) return &text;
    }
    return nullptr;
  }

  std::vector<std::pair<std::string, std::string>> members_;  // each list without its last bracket
};

struct WholeChoice {
  WholeChoice(const ResponseInfo& info, int index) : output(info, index) {}
  ChoiceOutput output;
  Message message;
  Lists logprobs;
  std::string prompt_logprobs;  // as JSON
  Json volley;
  std::vector<TokenId> tokens;
};

class WholeWriter final : public ChoicesWriter<WholeChoice> {
 public:
  using ChoicesWriter::ChoicesWriter;

  std::string add(int index, const Event& event) override {
    WholeChoice& choice = choices_[static_cast<size_t>(index)];
    auto news = choice.output.read(event);
    choice.message.add(std::move(news.delta));
    choice.logprobs.add(news.logprobs);
    if (!news.prompt_logprobs.is_null()) choice.prompt_logprobs = dump(news.prompt_logprobs);
    choice.tokens.insert(choice.tokens.end(), news.tokens.begin(), news.tokens.end());
    if (news.last) {
      choice.volley = std::move(news.volley);
      usage_.add(index, counted(info_, index, *event.finish), choice.output.reasoning_tokens());
    }
    return {};
  }

  std::string end() override {
    const bool chat = info_.kind == ApiKind::kChat;
    std::string prompt_logprobs = chat ? std::move(choices_.front().prompt_logprobs) : std::string();
    std::string body = open(envelope(info_, chat ? "chat.completion" : "text_completion")) + ",\"choices\":[";
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) body += ',';
      append_choice(choices_[i], static_cast<int>(i), body);
    }
    Json rest = {{"usage", usage_.json()}};
    // A chat has one prompt, so its data stand beside the choices.
    if (chat && info_.shape.token_ids) rest["prompt_token_ids"] = info_.prompts.front().ids;
    body.append("],").append(open(rest), 1);
    if (chat) append_prompt_logprobs(prompt_logprobs, body);
    return body.append("}");
  }

  std::string fail(const ApiError&) override { return {}; }  // a whole answer has not begun before its end

 private:
  // An object that still gets members as text. REQUIRES: it has one already.
  static std::string open(const Json& object) {
    std::string text = dump(object);
    text.pop_back();
    return text;
  }

  void append_prompt_logprobs(const std::string& json, std::string& out) const {
    if (info_.shape.prompt_logprobs < 0) return;
    out.append(",\"prompt_logprobs\":").append(json.empty() ? "null" : json);
  }

  Json message_json(Message& message) const {
    Json json = {{"role", "assistant"}, {"content", std::move(message.content)}, {"refusal", nullptr}};
    add_reasoning(std::move(message.reasoning), json);
    if (message.calls.empty()) return json;
    if (json["content"] == "") json["content"] = nullptr;
    Json calls = Json::array();
    for (OutputDelta::ToolCall& call : message.calls) {
      const char* type = type_of(call);
      calls.push_back({{"id", call.id},
                       {"type", type},
                       {type, {{"name", call.name}, {text_name(call), std::move(call.arguments)}}}});
    }
    json["tool_calls"] = std::move(calls);
    return json;
  }

  // Consumes the choice's parts.
  void append_choice(WholeChoice& choice, int index, std::string& out) const {
    Json json = {{"index", index}};
    if (info_.kind == ApiKind::kChat) {
      json["message"] = message_json(choice.message);
    } else {
      json["text"] = std::move(choice.message.content);
    }
    out.append(open(json)).append(",\"logprobs\":");
    choice.logprobs.append_to(out);
    choice.logprobs = {};
    Json rest = {{"finish_reason", choice.output.finish_reason()}, {"stop_reason", choice.output.stop_reason()}};
    if (info_.shape.token_ids) rest["token_ids"] = std::move(choice.tokens);
    if (info_.shape.tokens_per_step) rest["volley"] = std::move(choice.volley);
    const bool chat = info_.kind == ApiKind::kChat;
    if (!chat && info_.shape.token_ids) rest["prompt_token_ids"] = info_.prompt_of(index).ids;
    out.append(",").append(open(rest), 1);
    if (!chat) append_prompt_logprobs(std::exchange(choice.prompt_logprobs, {}), out);
    out += '}';
  }
};

class StreamWriter final : public ChoicesWriter<ChoiceOutput> {
 public:
  using ChoicesWriter::ChoicesWriter;

  // Sends a role first (chat), then news, then an empty chunk with the finish reason.
  std::string add(int index, const Event& event) override {
    ChoiceOutput& choice = choices_[static_cast<size_t>(index)];
    auto news = choice.read(event);
    std::string out;
    if (news.first && info_.kind == ApiKind::kChat) {
      out += chunk(index, payload({{"role", "assistant"}, {"content", ""}}), prompt_part(index, news));
    }
    Json volley = std::move(news.volley);
    Json parts = Json::object();
    if (!volley.is_null() && !news.last) parts["volley"] = std::exchange(volley, nullptr);
    const Json prompt = news.first && info_.kind == ApiKind::kCompletion ? prompt_part(index, news) : Json::object();
    // Tokens with held-back text make no chunk of their own, unless blocks are shown.
    if (!news.delta.empty() || !news.logprobs.is_null() || !news.tokens.empty() || !parts.empty() || !prompt.empty()) {
      Json choice_json = payload(delta_json(news.delta));
      choice_json["logprobs"] = std::move(news.logprobs);
      if (info_.shape.token_ids) choice_json["token_ids"] = std::move(news.tokens);
      choice_json.update(prompt);
      out += chunk(index, std::move(choice_json), std::move(parts));
    }
    if (news.last) {
      usage_.add(index, counted(info_, index, *event.finish), choice.reasoning_tokens());
      Json end = payload(info_.kind == ApiKind::kChat ? Json::object() : Json(""));
      end["finish_reason"] = choice.finish_reason();
      end["stop_reason"] = choice.stop_reason();
      out += chunk(index, std::move(end), volley.is_null() ? Json::object() : Json{{"volley", std::move(volley)}});
    }
    return out;
  }

  std::string end() override {
    std::string out;
    if (info_.shape.include_usage) {
      Json body = envelope(info_, object_name());
      body["choices"] = Json::array();
      body["usage"] = usage_.json();
      out = frame(body);
    }
    return out.append(kDone);
  }

  std::string fail(const ApiError& error) override {
    return "data: " + error_json(error) + "\n\n" + std::string(kDone);
  }

 private:
  const char* object_name() const { return info_.kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion"; }

  // A choice in a chunk, without its index.
  Json payload(Json content) const {
    return {{info_.kind == ApiKind::kChat ? "delta" : "text", std::move(content)},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  Json delta_json(const OutputDelta& delta) const {
    std::string content = delta.content();
    if (info_.kind == ApiKind::kCompletion) return content;
    std::vector<OutputDelta::ToolCall> tool_calls = delta.tool_calls();
    Json json = Json::object();
    add_reasoning(delta.reasoning(), json);
    if (!content.empty() || (json.empty() && tool_calls.empty())) json["content"] = std::move(content);
    Json calls = Json::array();
    for (OutputDelta::ToolCall& call : tool_calls) {
      Json tool = {{text_name(call), std::move(call.arguments)}};
      Json entry = {{"index", call.index}};
      if (!call.id.empty()) {
        entry["id"] = std::move(call.id);
        entry["type"] = type_of(call);
        tool["name"] = std::move(call.name);
      }
      entry[type_of(call)] = std::move(tool);
      calls.push_back(std::move(entry));
    }
    if (!calls.empty()) json["tool_calls"] = std::move(calls);
    return json;
  }

  // The prompt's part, on the first chunk.
  Json prompt_part(int index, const ChoiceOutput::News& news) const {
    Json part = Json::object();
    if (info_.shape.prompt_logprobs >= 0) part["prompt_logprobs"] = news.prompt_logprobs;
    if (info_.shape.token_ids) part["prompt_token_ids"] = info_.prompt_of(index).ids;
    return part;
  }

  std::string chunk(int index, Json choice, Json beside) const {
    Json body = envelope(info_, object_name());
    Json entry = {{"index", index}};
    entry.update(choice);
    body["choices"] = Json::array({std::move(entry)});
    if (info_.shape.continuous_usage) {
      const int64_t prompt = info_.prompt_of(index).tokens;
      const int64_t completion = choices_[static_cast<size_t>(index)].completion_tokens();
      body["usage"] = {
          {"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
    } else if (info_.shape.include_usage) {
      body["usage"] = nullptr;
    }
    body.update(beside);
    return frame(body);
  }
};

}  // namespace

void UsageTotals::add(int choice, const Usage& usage, int64_t reasoning_tokens) {
  // Later choices find the prompt in the cache because of the first, so only the first reports what the cache saved.
  if (choice % n_ == 0) {
    prompt_ += usage.prompt_tokens;
    cached_ += usage.cached_tokens;
  }
  completion_ += usage.completion_tokens;
  reasoning_ += reasoning_tokens;
  drafted_ += usage.drafted_tokens;
  accepted_ += usage.accepted_tokens;
}

Json UsageTotals::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", completion_},
          {"total_tokens", prompt_ + completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", reasoning_},
            {"accepted_prediction_tokens", accepted_},
            {"rejected_prediction_tokens", drafted_ - accepted_}}}};
}

std::unique_ptr<ResponseWriter> whole_response_writer(ResponseInfo info, int choices) {
  return std::make_unique<WholeWriter>(std::move(info), choices);
}

std::unique_ptr<ResponseWriter> stream_response_writer(ResponseInfo info, int choices) {
  return std::make_unique<StreamWriter>(std::move(info), choices);
}

}  // namespace volley::serve
