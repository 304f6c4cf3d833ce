#include "serve/batches/batch_state.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

namespace volley::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNames[] = {"validating", "in_progress", "finalizing", "cancelling",
                                       "completed",  "failed",      "expired",    "cancelled"};
constexpr int64_t kMaxWindow = 30 * 24 * 3600;
constexpr size_t kMaxWindowText = 16;

Json or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json(nullptr);
}
Json time_or_null(int64_t seconds) {
  return seconds != 0 ? Json(seconds) : Json(nullptr);
}

Json errors_json(const std::vector<LineProblem>& errors) {
  if (errors.empty()) return nullptr;
  Json data = Json::array();
  for (const LineProblem& error : errors) {
    data.push_back({{"code", error.code},
                    {"line", error.line > 0 ? Json(error.line) : Json(nullptr)},
                    {"message", error.message},
                    {"param", nullptr}});
  }
  return {{"object", "list"}, {"data", std::move(data)}};
}

Json to_json(const Batch& batch) {
  const auto at = [&](BatchStatus status) { return time_or_null(batch.status == status ? batch.over_at : 0); };
  return {{"id", batch.id},
          {"object", "batch"},
          {"endpoint", batch.endpoint},
          {"errors", errors_json(batch.errors)},
          {"input_file_id", batch.input_file_id},
          {"completion_window", batch.completion_window},
          {"status", batch_status_name(batch.status)},
          {"output_file_id", or_null(is_over(batch.status) ? batch.output_file_id : std::nullopt)},
          {"error_file_id", or_null(is_over(batch.status) ? batch.error_file_id : std::nullopt)},
          {"created_at", batch.created_at},
          {"in_progress_at", time_or_null(batch.in_progress_at)},
          {"expires_at", time_or_null(batch.expires_at)},
          {"finalizing_at", time_or_null(batch.finalizing_at)},
          {"completed_at", at(BatchStatus::kCompleted)},
          {"failed_at", at(BatchStatus::kFailed)},
          {"expired_at", at(BatchStatus::kExpired)},
          {"cancelling_at", time_or_null(batch.cancelling_at)},
          {"cancelled_at", at(BatchStatus::kCancelled)},
          {"request_counts", {{"total", batch.total}, {"completed", batch.completed}, {"failed", batch.failed}}},
          {"metadata", Json::parse(batch.metadata)}};
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<BatchStatus> status_of(const Json& name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name.get<std::string>());
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<BatchStatus>(found - std::begin(kNames));
}

std::optional<std::string> text_of(const Json& json) {
  return json.is_string() ? std::optional(json.get<std::string>()) : std::nullopt;
}
int64_t time_of(const Json& json) {
  return json.is_number_integer() ? json.get<int64_t>() : 0;
}

std::vector<LineProblem> errors_of(const Json& json) {
  std::vector<LineProblem> errors;
  if (json.is_null()) return errors;
  for (const Json& error : json.at("data")) {
    errors.push_back({time_of(error.at("line")), error.at("code"), error.at("message")});
  }
  return errors;
}

}  // namespace

std::string_view batch_status_name(BatchStatus status) {
  return kNames[static_cast<size_t>(status)];
}

size_t batch_bytes(const Batch& batch) {
  size_t bytes = sizeof(Batch);
  for (const auto* text : {&batch.id, &batch.owner, &batch.endpoint, &batch.input_file_id, &batch.completion_window,
                           &batch.client, &batch.metadata}) {
    bytes += text->size();
  }
  for (const LineProblem& error : batch.errors) bytes += sizeof(error) + error.code.size() + error.message.size();
  return bytes;
}

std::string batch_json(const Batch& batch) {
  return dump(to_json(batch));
}

std::string batch_note(const Batch& batch) {
  Json json = to_json(batch);
  json["volley"] = {{"owner", batch.owner},
                    {"client", batch.client},
                    {"sequence", batch.sequence},
                    {"outcome", batch_status_name(batch.outcome)},
                    {"over_at", batch.over_at},
                    {"attempts", batch.attempts},
                    {"result_bytes", batch.result_bytes},
                    {"output_file_id", or_null(batch.output_file_id)},
                    {"error_file_id", or_null(batch.error_file_id)}};
  return dump(json);
}

std::optional<Batch> read_batch_note(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  try {
    const Json &own = json.at("volley"), &counts = json.at("request_counts");
    const auto status = status_of(json.at("status")), outcome = status_of(own.at("outcome"));
    if (!status || !outcome) return std::nullopt;
    Batch batch;
    batch.id = json.at("id");
    batch.owner = own.at("owner");
    batch.client = own.value("client", "");
    batch.endpoint = json.at("endpoint");
    batch.input_file_id = json.at("input_file_id");
    batch.completion_window = json.at("completion_window");
    batch.metadata = dump(json.at("metadata"));
    batch.metadata.shrink_to_fit();
    batch.status = *status;
    batch.outcome = *outcome;
    batch.output_file_id = text_of(own.at("output_file_id"));
    batch.error_file_id = text_of(own.at("error_file_id"));
    batch.errors = errors_of(json.at("errors"));
    batch.created_at = json.at("created_at");
    batch.expires_at = time_of(json.at("expires_at"));
    batch.in_progress_at = time_of(json.at("in_progress_at"));
    batch.finalizing_at = time_of(json.at("finalizing_at"));
    batch.cancelling_at = time_of(json.at("cancelling_at"));
    batch.over_at = time_of(own.at("over_at"));
    batch.total = counts.at("total");
    batch.completed = counts.at("completed");
    batch.failed = counts.at("failed");
    batch.sequence = own.at("sequence");
    batch.attempts = own.value("attempts", 0);
    batch.result_bytes = own.value("result_bytes", int64_t{0});
    return batch;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::optional<int64_t> read_window(std::string_view text) {
  // The text is stored with its batch, so leading zeros must not make it long.
  if (text.size() > kMaxWindowText) return std::nullopt;
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end + 1 != text.data() + text.size() || count < 1 || count > kMaxWindow) {
    return std::nullopt;
  }
  const int64_t unit = *end == 's' ? 1 : *end == 'm' ? 60 : *end == 'h' ? 3600 : *end == 'd' ? 24 * 3600 : 0;
  const int64_t seconds = count * unit;
  return seconds >= 1 && seconds <= kMaxWindow ? std::optional(seconds) : std::nullopt;
}

}  // namespace volley::serve
