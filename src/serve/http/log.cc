#include "serve/http/log.h"

#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPrompt = 8192;
constexpr size_t kMaxSentence = 4096;
constexpr size_t kMaxMethod = 32;
constexpr size_t kMaxReason = 300;

std::string dump(const Json& json) {
  return escape_unseen(json.dump(-1, ' ', false, Json::error_handler_t::replace), Escapes::kJson);
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto part = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text.data() + size, text.size() - size, ".%03dZ", static_cast<int>(part));
  return text.data();
}

Json record_of(spdlog::level::level_enum level, const char* event) {
  return {{"time", utc_now()}, {"level", spdlog::level::to_string_view(level).data()}, {"event", event}};
}

bool is_probe(std::string_view path) {
  return path == "/health" || path == "/ready" || path == "/metrics" || path == "/version" || path == "/load" ||
         path == "/get_load";
}

std::string access_text(const AccessRecord& record) {
  std::array<char, 32> seconds{};
  std::snprintf(seconds.data(), seconds.size(), "%.3f s", record.seconds);
  std::string text = record.method.empty() ? "unreadable request" : for_log(record.method, kMaxMethod);
  text.append(" ").append(record.path).append(" ").append(record.status == 0 ? "-" : std::to_string(record.status));
  text.append(" ").append(seconds.data()).append(" id=").append(record.request_id);
  if (record.tokens) {
    text += " prompt=" + std::to_string(record.tokens->prompt) + " cached=" + std::to_string(record.tokens->cached) +
            " output=" + std::to_string(record.tokens->completion);
  }
  if (!record.error.empty()) text.append(" error=").append(record.error);
  if (!record.reason.empty()) text.append(" reason=\"").append(for_log(record.reason, kMaxReason)).append("\"");
  return record.delivered ? text : text + " (the client left)";
}

std::string access_json(spdlog::level::level_enum level, const AccessRecord& record) {
  Json json = record_of(level, "request");
  json["request_id"] = record.request_id;
  json["method"] = for_log(record.method, kMaxMethod);
  json["path"] = record.path;
  json["status"] = record.status;
  json["seconds"] = record.seconds;
  json["delivered"] = record.delivered;
  if (!record.error.empty()) json["error"] = record.error;
  if (!record.reason.empty()) json["reason"] = for_log(record.reason, kMaxReason);
  if (record.tokens) {
    json["prompt_tokens"] = record.tokens->prompt;
    json["cached_tokens"] = record.tokens->cached;
    json["completion_tokens"] = record.tokens->completion;
  }
  return dump(json);
}

}  // namespace

std::string for_log(std::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return escape_unseen(text, Escapes::kBytes);
  while (max_bytes > 0 && (static_cast<unsigned char>(text[max_bytes]) & 0xC0) == 0x80) --max_bytes;
  return escape_unseen(text.substr(0, max_bytes), Escapes::kBytes) + "…";
}

std::string log_payload(LogFormat format, int level, std::string_view message) {
  if (format == LogFormat::kText) return for_log(message, kMaxSentence);
  Json json = record_of(static_cast<spdlog::level::level_enum>(level), "message");
  json["message"] = for_log(message, kMaxSentence);
  return dump(json);
}

ServerLog::ServerLog(std::shared_ptr<spdlog::logger> logger, LogFormat format)
    : logger_(std::move(logger)), format_(format) {}

void ServerLog::sentence(int level, std::string_view message) const {
  const auto at = static_cast<spdlog::level::level_enum>(level);
  if (!logger_ || !logger_->should_log(at)) return;
  logger_->log(at, "{}", log_payload(format_, level, message));
}

void ServerLog::debug(std::string_view message) const {
  sentence(spdlog::level::debug, message);
}
void ServerLog::info(std::string_view message) const {
  sentence(spdlog::level::info, message);
}
void ServerLog::warn(std::string_view message) const {
  sentence(spdlog::level::warn, message);
}
void ServerLog::error(std::string_view message) const {
  sentence(spdlog::level::err, message);
}

void ServerLog::access(const AccessRecord& record) const {
  const auto level = is_probe(record.path) && record.status == 200 ? spdlog::level::debug : spdlog::level::info;
  if (!logger_ || !logger_->should_log(level)) return;
  logger_->log(level, "{}", format_ == LogFormat::kText ? access_text(record) : access_json(level, record));
}

void ServerLog::prompt(std::string_view request_id, std::string_view text) const {
  if (!logger_ || !logger_->should_log(spdlog::level::info)) return;
  Json json = record_of(spdlog::level::info, "prompt");
  json["request_id"] = request_id;
  json["prompt"] = text.substr(0, kMaxPrompt);
  json["prompt_bytes"] = text.size();
  // Written as JSON in either format, because a prompt has line ends.
  logger_->log(spdlog::level::info, "{}",
               format_ == LogFormat::kJson ? dump(json)
                                           : "prompt of id=" + std::string(request_id) + ": " + dump(json["prompt"]));
}

}  // namespace volley::serve
