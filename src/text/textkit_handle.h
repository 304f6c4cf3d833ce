// Ownership of what textkit returns, and its failures as Errors. For the .cc files of this folder.
#pragma once

#include <textkit.h>
#include <volley/result.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace volley::text {

inline textkit_view view(std::string_view text) {
  return {text.data(), text.size()};
}

// textkit tells a missing file from an empty one by the pointer.
inline textkit_view optional_view(const std::optional<std::string>& contents) {
  return contents ? textkit_view{contents->c_str(), contents->size()} : textkit_view{nullptr, 0};
}

// Frees on leaving the scope.
class OwnedBytes {
 public:
  OwnedBytes() = default;
  OwnedBytes(const OwnedBytes&) = delete;
  OwnedBytes& operator=(const OwnedBytes&) = delete;
  ~OwnedBytes() { textkit_bytes_free(bytes_); }

  textkit_bytes* out() { return &bytes_; }
  std::string str() const { return std::string(bytes_.data, bytes_.size); }

 private:
  textkit_bytes bytes_{nullptr, 0};
};

class OwnedIds {
 public:
  OwnedIds() = default;
  OwnedIds(const OwnedIds&) = delete;
  OwnedIds& operator=(const OwnedIds&) = delete;
  ~OwnedIds() { textkit_ids_free(ids_); }

  textkit_ids* out() { return &ids_; }
  std::vector<int32_t> vector() const { return {ids_.data, ids_.data + ids_.size}; }

 private:
  textkit_ids ids_{nullptr, 0};
};

inline textkit_cancel cancel_of(const std::atomic<bool>* cancelled) {
  if (!cancelled) return {nullptr, nullptr};
  return {[](const void* flag) { return static_cast<const std::atomic<bool>*>(flag)->load(); }, cancelled};
}

inline Error textkit_error(textkit_status status, const OwnedBytes& message, const std::string& prefix = "") {
  switch (status) {
    case TEXTKIT_INVALID_ARGUMENT:
      return invalid_argument(prefix + message.str());
    case TEXTKIT_FAILED_PRECONDITION:
      return failed_precondition(prefix + message.str());
    case TEXTKIT_DATA_LOSS:
      return data_loss(prefix + message.str());
    case TEXTKIT_EXHAUSTED:
      return resource_exhausted(prefix + message.str());
    case TEXTKIT_CANCELLED:
      return Error{ErrorCode::kCancelled, "The work on the text was cancelled."};
    case TEXTKIT_OUT_OF_MEMORY:
      return Error{ErrorCode::kUnavailable, prefix + message.str() + ": try again later"};
    case TEXTKIT_OK:
    case TEXTKIT_INTERNAL:
      break;
  }
  return internal_error(prefix + message.str());
}

}  // namespace volley::text
