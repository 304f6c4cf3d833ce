// A batch as /v1/batches shows it and as its folder stores it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/batches/batch_index.h"

namespace volley::serve {

enum class BatchStatus {
  kValidating,
  kInProgress,
  kFinalizing,
  kCancelling,
  kCompleted,
  kFailed,
  kExpired,
  kCancelled
};
std::string_view batch_status_name(BatchStatus status);
inline bool is_over(BatchStatus status) {
  return status >= BatchStatus::kCompleted;
}

struct Batch {
  std::string id, owner, endpoint, input_file_id, completion_window;
  std::string client;             // HttpRequest::client of its creator
  std::string metadata = "null";  // JSON
  BatchStatus status = BatchStatus::kValidating;
  BatchStatus outcome = BatchStatus::kCompleted;  // a finalizing batch's outcome
  std::optional<std::string> output_file_id, error_file_id;
  std::vector<LineProblem> errors;
  // Seconds since 1970; 0: it has not happened.
  int64_t created_at = 0, expires_at = 0, in_progress_at = 0, finalizing_at = 0, cancelling_at = 0, over_at = 0;
  int64_t total = 0, completed = 0, failed = 0;  // lines
  int64_t sequence = 0;                          // grows with every batch
  // How often it was started since its last new result or clean stop. After a kill this shows what may have caused it.
  int attempts = 0;
  int64_t result_bytes = 0;  // size of its two result files when it was last started
};

// Estimates its memory.
size_t batch_bytes(const Batch& batch);

std::string batch_json(const Batch& batch);
// The stored form: /v1/batches' fields and those that clients do not see.
std::string batch_note(const Batch& batch);
std::optional<Batch> read_batch_note(std::string_view text);

// "24h" in seconds: an integer of seconds, minutes, hours or days (s, m, h, d), up to 30 days.
std::optional<int64_t> read_window(std::string_view text);

}  // namespace volley::serve
