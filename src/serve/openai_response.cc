#include "serve/openai_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "serve/json_text.h"

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

// JSON has no infinity; a token that a mask ruled out gets the value that OpenAI uses for "practically impossible".
float finite_logprob(float logprob) {
  return std::max(logprob, -9999.0f);
}

Json chat_logprob(const TokenLogprob& entry, const TokenText& token_text) {
  const std::string text = token_text(entry.token);
  Json bytes = nullptr;
  // U+FFFD: the token holds part of a character, and its own bytes are not known here.
  if (text.find("\xEF\xBF\xBD") == std::string::npos) {
    bytes = Json::array();
    for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  }
  return {{"token", text}, {"logprob", finite_logprob(entry.logprob)}, {"bytes", std::move(bytes)}};
}

Json finish_name(const std::optional<Finish>& finish) {
  if (!finish) return nullptr;
  return finish->reason == FinishReason::kLength ? "length" : "stop";
}

Json envelope(const ResponseInfo& info, const char* object) {
  return {{"id", info.id},
          {"object", object},
          {"created", info.created},
          {"model", info.model},
          {"system_fingerprint", nullptr}};
}

void add_logprobs(const ResponseInfo& info, LogprobsWriter& writer, const Event& event, Json& out) {
  if (!info.logprobs || event.logprobs.empty()) return;
  if (info.kind == ApiKind::kChat) {
    writer.add_chat(event, info.token_text, out);
  } else {
    writer.add_completion(event, info.token_text, out);
  }
}

std::string echo_of(const ResponseInfo& info, int choice) {
  return info.echo.empty() ? std::string() : info.echo[static_cast<size_t>(choice / info.n)];
}

class WholeWriter final : public ResponseWriter {
 public:
  WholeWriter(ResponseInfo info, int choices) : info_(std::move(info)), usage_(info_.n) {
    choices_.resize(static_cast<size_t>(choices));
    for (int choice = 0; choice < choices; ++choice)
      choices_[static_cast<size_t>(choice)].text = echo_of(info_, choice);
  }

  std::string add(int index, const Event& event) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    choice.text += event.text;
    add_logprobs(info_, choice.logprobs_writer, event, choice.logprobs);
    if (event.finish) {
      choice.finish = event.finish;
      usage_.add(index, event.finish->usage);
    }
    return {};
  }

  std::string end() override {
    const bool chat = info_.kind == ApiKind::kChat;
    Json body = envelope(info_, chat ? "chat.completion" : "text_completion");
    Json list = Json::array();
    for (Choice& choice : choices_) {
      Json json = {{"index", list.size()}};
      if (chat) {
        json["message"] = {{"role", "assistant"}, {"content", std::move(choice.text)}, {"refusal", nullptr}};
      } else {
        json["text"] = std::move(choice.text);
      }
      json["logprobs"] = std::move(choice.logprobs);
      json["finish_reason"] = finish_name(choice.finish);
      list.push_back(std::move(json));
    }
    body["choices"] = std::move(list);
    body["usage"] = usage_.json();
    return dump(body);
  }

 private:
  struct Choice {
    std::string text;
    Json logprobs = nullptr;
    LogprobsWriter logprobs_writer;
    std::optional<Finish> finish;
  };

  ResponseInfo info_;
  std::vector<Choice> choices_;
  UsageTotals usage_;
};

class StreamWriter final : public ResponseWriter {
 public:
  StreamWriter(ResponseInfo info, int choices)
      : info_(std::move(info)), choices_(static_cast<size_t>(choices)), usage_(info_.n) {}

  std::string add(int index, const Event& event) override {
    Choice& choice = choices_[static_cast<size_t>(index)];
    std::string out;
    std::string text = event.text;
    if (!choice.begun) {
      choice.begun = true;
      if (info_.kind == ApiKind::kChat) {
        out += chunk(index, Json{{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
      } else {
        text = echo_of(info_, index) + text;
      }
    }
    Json logprobs = nullptr;
    add_logprobs(info_, choice.logprobs_writer, event, logprobs);
    // Tokens whose text is held back make no chunk of their own.
    if (!text.empty() || !logprobs.is_null()) out += text_chunk(index, std::move(text), std::move(logprobs), nullptr);
    if (event.finish) {
      usage_.add(index, event.finish->usage);
      out += info_.kind == ApiKind::kChat ? chunk(index, Json::object(), nullptr, finish_name(event.finish))
                                          : text_chunk(index, "", nullptr, finish_name(event.finish));
    }
    return out;
  }

  std::string end() override {
    std::string out;
    if (info_.include_usage) {
      Json body = envelope(info_, object_name());
      body["choices"] = Json::array();
      body["usage"] = usage_.json();
      out = frame(body);
    }
    return out.append(kDone);
  }

 private:
  struct Choice {
    bool begun = false;
    LogprobsWriter logprobs_writer;
  };

  const char* object_name() const { return info_.kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion"; }

  std::string text_chunk(int index, std::string text, Json logprobs, Json finish) const {
    Json payload = std::move(text);
    if (info_.kind == ApiKind::kChat) payload = Json{{"content", std::move(payload)}};
    return chunk(index, std::move(payload), std::move(logprobs), std::move(finish));
  }

  std::string chunk(int index, Json payload, Json logprobs, Json finish) const {
    Json body = envelope(info_, object_name());
    Json choice = {{"index", index}};
    choice[info_.kind == ApiKind::kChat ? "delta" : "text"] = std::move(payload);
    choice["logprobs"] = std::move(logprobs);
    choice["finish_reason"] = std::move(finish);
    body["choices"] = Json::array({std::move(choice)});
    if (info_.include_usage) body["usage"] = nullptr;
    return frame(body);
  }

  ResponseInfo info_;
  std::vector<Choice> choices_;
  UsageTotals usage_;
};

}  // namespace

void UsageTotals::add(int choice, const Usage& usage) {
  // Later choices of a prompt find it in the cache because of the first: only that one says what the cache saved.
  if (choice % n_ == 0) {
    prompt_ += usage.prompt_tokens;
    cached_ += usage.cached_tokens;
  }
  completion_ += usage.completion_tokens;
  drafted_ += usage.drafted_tokens;
  accepted_ += usage.accepted_tokens;
}

Json UsageTotals::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", completion_},
          {"total_tokens", prompt_ + completion_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}},
          {"completion_tokens_details",
           {{"accepted_prediction_tokens", accepted_}, {"rejected_prediction_tokens", drafted_ - accepted_}}}};
}

void LogprobsWriter::add_chat(const Event& event, const TokenText& token_text, Json& out) {
  if (out.is_null()) out = {{"content", Json::array()}, {"refusal", nullptr}};
  for (const PositionLogprobs& position : event.logprobs) {
    Json entry = chat_logprob(position.chosen, token_text);
    Json top = Json::array();
    for (const TokenLogprob& other : position.top) top.push_back(chat_logprob(other, token_text));
    entry["top_logprobs"] = std::move(top);
    out["content"].push_back(std::move(entry));
  }
}

void LogprobsWriter::add_completion(const Event& event, const TokenText& token_text, Json& out) {
  if (out.is_null()) {
    out = {{"tokens", Json::array()},
           {"token_logprobs", Json::array()},
           {"top_logprobs", Json::array()},
           {"text_offset", Json::array()}};
  }
  for (const PositionLogprobs& position : event.logprobs) {
    const std::string text = token_text(position.chosen.token);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(finite_logprob(position.chosen.logprob));
    Json top = Json::object();
    for (const TokenLogprob& other : position.top) {
      // Two tokens can print alike (parts of characters): the likelier one came first and stays.
      top.emplace(token_text(other.token), finite_logprob(other.logprob));
    }
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset_);
    offset_ += count_code_points(text);
  }
}

std::unique_ptr<ResponseWriter> whole_response_writer(ResponseInfo info, int choices) {
  return std::make_unique<WholeWriter>(std::move(info), choices);
}

std::unique_ptr<ResponseWriter> stream_response_writer(ResponseInfo info, int choices) {
  return std::make_unique<StreamWriter>(std::move(info), choices);
}

std::string stream_error(const ApiError& error) {
  return "data: " + error_json(error) + "\n\n" + std::string(kDone);
}

}  // namespace volley::serve
