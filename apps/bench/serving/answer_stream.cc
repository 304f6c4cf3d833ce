#include "apps/bench/serving/answer_stream.h"

#include <nlohmann/json.hpp>

namespace volley::apps {
namespace {

using Json = nlohmann::json;
using Pointer = Json::json_pointer;

constexpr size_t kMaxHeadBytes = 2048;

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// Null for everything that is not there.
Json at(const Json& json, const char* pointer) {
  const Pointer path(pointer);
  return json.contains(path) ? json.at(path) : Json();
}

std::string text_at(const Json& json, const char* pointer) {
  const Json value = at(json, pointer);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::optional<int64_t> integer_at(const Json& json, const char* pointer) {
  const Json value = at(json, pointer);
  if (!value.is_number_integer()) return std::nullopt;
  return value.get<int64_t>();
}

// Both endpoints, and the fields that reasoning models and tools add.
std::string text_of(const Json& event) {
  std::string text = text_at(event, "/choices/0/text");
  for (const char* path : {"/choices/0/delta/reasoning_content", "/choices/0/delta/reasoning",
                           "/choices/0/delta/content", "/choices/0/delta/tool_calls/0/function/arguments"}) {
    text += text_at(event, path);
  }
  return text;
}

}  // namespace

void AnswerStream::read(std::string_view bytes, Time now) {
  if (head_.size() < kMaxHeadBytes) head_ += bytes.substr(0, kMaxHeadBytes - head_.size());
  lines_.read(bytes, [this, now](std::string_view data) { event(data, now); });
}

void AnswerStream::event(std::string_view data, Time now) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object()) {
    record_.error = "The endpoint sent an event that is not a JSON object.";
    return;
  }
  if (json.contains("error") && !json["error"].is_null()) record_.error = endpoint_error(json);
  if (const std::string piece = text_of(json); !piece.empty()) text(piece, now);
  for (const char* path : {"/choices/0/volley/tokens_per_step", "/volley/tokens_per_step"}) {
    const Json steps = at(json, path);
    if (steps.is_array()) record_.verify_steps = static_cast<int64_t>(steps.size());
  }
  const Json usage = at(json, "/usage");
  if (!usage.is_object()) return;
  usage_ = true;
  record_.prompt_tokens = integer_at(usage, "/prompt_tokens").value_or(0);
  record_.completion_tokens = integer_at(usage, "/completion_tokens").value_or(0);
  record_.cached_tokens = integer_at(usage, "/prompt_tokens_details/cached_tokens").value_or(0);
  record_.accepted_tokens = integer_at(usage, "/completion_tokens_details/accepted_prediction_tokens");
  record_.rejected_tokens = integer_at(usage, "/completion_tokens_details/rejected_prediction_tokens");
}

void AnswerStream::text(const std::string& piece, Time now) {
  if (record_.text.empty()) {
    record_.ttft_s = seconds(now - sent_);
  } else {
    record_.gaps_s.push_back(static_cast<float>(seconds(now - last_text_)));
  }
  last_text_ = now;
  record_.last_s = seconds(now - sent_);
  record_.text += piece;
}

AnswerRecord AnswerStream::end(int status, const std::string& failure, Time now) {
  record_.e2e_s = seconds(now - sent_);
  if (!failure.empty()) {
    record_.error = failure;
  } else if (status != 200) {
    record_.error = status_error(status, head_);
  } else if (record_.error.empty() && !done_) {
    record_.error = "The stream ended without its [DONE].";
  } else if (record_.error.empty() && !usage_) {
    record_.error = "The endpoint sent no usage (stream_options.include_usage), so tokens cannot be counted.";
  }
  return std::move(record_);
}

}  // namespace volley::apps
