#include <atomic>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/chat/chat_backend.h"
#include "apps/client/event_lines.h"

namespace volley::apps {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::hours kLongestAnswer{24};  // Ctrl-C ends an answer that takes too long
constexpr size_t kMaxErrorBytes = 2048;

std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int64_t count_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Reads one streamed answer event by event.
class Reader {
 public:
  // `blocks`: the origin of a chunk's tokens comes with it, or at the latest with the next chunk.
  Reader(const ChatBackend::OnSpan& on_span, bool blocks) : on_span_(on_span), blocks_(blocks) {}

  void read(std::string_view bytes) {
    if (head_.size() < kMaxErrorBytes) head_ += bytes.substr(0, kMaxErrorBytes - head_.size());
    lines_.read(bytes, [this](std::string_view data) { event(data); });
  }

  Result<ChatAnswer> end(const HttpEnd& end) {
    flush({}, 0);
    answer_.stats.total_s = std::chrono::duration<double>(Clock::now() - sent_).count();
    Error error{ErrorCode::kUnavailable, ""};
    if (end.stopped) {
      answer_.finish = FinishReason::kCancelled;
    } else if (!end.failure.empty()) {
      error.message = end.failure + ".";
    } else if (end.status != 200) {
      error.message = status_error(end.status, head_);
    } else if (!error_.empty()) {
      error.message = error_;
    } else if (!done_) {
      error.message = "The stream ended without its [DONE].";
    }
    if (error.message.empty()) return std::move(answer_);
    if (answer_.content.empty() && answer_.reasoning.empty()) return error;
    answer_.finish = FinishReason::kError;
    answer_.error = std::move(error);
    return std::move(answer_);
  }

 private:
  void event(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json json = Json::parse(data, nullptr, false);
    if (!json.is_object()) {
      error_ = "The endpoint sent an event that is not a JSON object.";
      return;
    }
    if (json.contains("error") && !json["error"].is_null()) error_ = endpoint_error(json);
    if (const auto choices = json.find("choices"); choices != json.end() && choices->is_array() && !choices->empty()) {
      choice(choices->front());
    }
    if (const auto ours = json.find("volley"); ours != json.end() && ours->is_object()) {
      block(*ours);
    } else if (!blocks_) {
      flush({}, 0);
    }
    if (const auto usage = json.find("usage"); usage != json.end() && usage->is_object()) {
      answer_.stats.prompt_tokens = count_of(*usage, "prompt_tokens");
      answer_.stats.completion_tokens = count_of(*usage, "completion_tokens");
      if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object()) {
        answer_.stats.cached_tokens = count_of(*details, "cached_tokens");
      }
    }
  }

  void choice(const Json& choice) {
    if (!choice.is_object()) return;
    if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
      // Servers use one of the two names, or both.
      std::string reasoning = text_of(*delta, "reasoning_content");
      if (reasoning.empty()) reasoning = text_of(*delta, "reasoning");
      reasoning_ += reasoning;
      content_ += text_of(*delta, "content");
    }
    if (text_of(choice, "finish_reason") == "length") answer_.finish = FinishReason::kLength;
  }

  // Reads Volley's report on a step.
  void block(const Json& block) {
    std::vector<std::string> pieces;
    for (const Json& piece : block.value("pieces", Json::array())) {
      if (piece.is_string()) pieces.push_back(piece);
    }
    if (const Json length = block.value("acceptance_length", Json()); length.is_number()) {
      answer_.stats.tokens_per_step = length.get<double>();
    }
    flush(pieces, static_cast<size_t>(std::max<int64_t>(0, count_of(block, "accepted"))));
  }

  void flush(const std::vector<std::string>& pieces, size_t accepted) {
    show(std::exchange(reasoning_, ""), true, pieces, accepted);
    show(std::exchange(content_, ""), false, pieces, accepted);
  }

  void show(const std::string& text, bool reasoning, const std::vector<std::string>& pieces, size_t accepted) {
    if (text.empty()) return;
    if (answer_.content.empty() && answer_.reasoning.empty()) {
      answer_.stats.ttft_s = std::chrono::duration<double>(Clock::now() - sent_).count();
    }
    (reasoning ? answer_.reasoning : answer_.content) += text;
    for (TokenColours::Span& span : spans_of_pieces(text, pieces, accepted)) {
      on_span_({std::move(span.text), span.origin, reasoning});
    }
  }

  const ChatBackend::OnSpan& on_span_;
  const bool blocks_;
  const Clock::time_point sent_ = Clock::now();
  EventLines lines_;
  ChatAnswer answer_;
  std::string reasoning_, content_;  // not shown yet
  std::string head_, error_;
  bool done_ = false;
};

class EndpointBackend final : public ChatBackend {
 public:
  EndpointBackend() : client_(kLongestAnswer) {}

  Status open(const std::string& url, const std::optional<std::string>& model, std::vector<std::string> headers,
              const std::function<bool()>& stopped) {
    VOLLEY_ASSIGN(endpoint_, probe_endpoint(&client_, url, model, std::move(headers), stopped));
    return {};
  }

  std::string name() const override { return endpoint_.model; }
  bool knows_origins() const override { return endpoint_.is_volley(); }
  void stop() override {
    stopped_ = true;
    client_.wake();
  }

  const AnswerDefaults& defaults() const override { return endpoint_.defaults; }
  Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings, const OnSpan& on_span,
                            const OnWait& on_wait) override {
    stopped_ = false;
    const Clock::time_point since = Clock::now();
    Reader reader(on_span, endpoint_.is_volley());
    const auto go_on = [&] {
      on_wait({std::chrono::duration<double>(Clock::now() - since).count(), std::nullopt, std::nullopt});
      return !stopped_;
    };
    return reader.end(client_.run(
        {endpoint_.base + "/chat/completions", body(conversation, settings), endpoint_.headers},
        [&reader](std::string_view bytes) { reader.read(bytes); }, go_on));
  }

 private:
  std::string body(const Conversation& conversation, const ChatSettings& settings) const {
    nlohmann::ordered_json body = {{"model", endpoint_.model}};
    body["messages"] = nlohmann::ordered_json::parse(conversation.messages_json());
    RequestSettings sampling = settings.sampling;
    if (const AnswerDefaults& defaults = endpoint_.defaults; defaults.milder) {
      if (!sampling.temperature) sampling.temperature = defaults.sampling->temperature;
      if (!sampling.top_p) sampling.top_p = defaults.sampling->top_p;
    }
    put_settings(sampling, 0, &body);
    if (settings.thinking) body["chat_template_kwargs"] = {{"enable_thinking", *settings.thinking}};
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    if (endpoint_.is_volley()) body["volley"] = {{"blocks", true}, {"tokens_per_step", true}};
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  HttpClient client_;
  Endpoint endpoint_;
  std::atomic<bool> stopped_{false};
};

}  // namespace

Result<std::unique_ptr<ChatBackend>> make_endpoint_backend(const std::string& url,
                                                           const std::optional<std::string>& model,
                                                           std::vector<std::string> headers,
                                                           const std::function<bool()>& stopped) {
  auto backend = std::make_unique<EndpointBackend>();
  VOLLEY_RETURN_IF_ERROR(backend->open(url, model, std::move(headers), stopped));
  return std::unique_ptr<ChatBackend>(std::move(backend));
}

std::vector<TokenColours::Span> spans_of_pieces(std::string_view text, const std::vector<std::string>& pieces,
                                                size_t accepted) {
  std::vector<TokenColours::Span> spans;
  for (size_t i = 0; i < pieces.size() && !text.empty(); ++i) {
    const std::string& piece = pieces[i];
    if (piece.empty() || !text.starts_with(piece)) continue;  // a token without text
    const auto origin = i < accepted ? TokenColours::Origin::kDrafted : TokenColours::Origin::kChosen;
    if (spans.empty() || spans.back().origin != origin) spans.push_back({"", origin});
    spans.back().text += piece;
    text.remove_prefix(piece.size());
  }
  if (!text.empty()) spans.push_back({std::string(text), TokenColours::Origin::kUnknown});
  return spans;
}

}  // namespace volley::apps
