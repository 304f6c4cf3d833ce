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

// An empty file has a non-null pointer, because textkit treats null as a missing file.
inline textkit_view optional_view(const std::optional<std::string>& contents) {
  return contents ? textkit_view{contents->c_str(), contents->size()} : textkit_view{nullptr, 0};
}

// Frees on leaving the scope.
template <typename Buffer, void (*kFree)(Buffer)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { kFree(buffer_); }

  Buffer* out() { return &buffer_; }

 protected:
  Buffer buffer_{nullptr, 0};
};

class OwnedBytes : public Owned<textkit_bytes, textkit_bytes_free> {
 public:
  std::string str() const { return std::string(buffer_.data, buffer_.size); }
  std::vector<uint8_t> bytes() const { return {buffer_.data, buffer_.data + buffer_.size}; }
};

class OwnedIds : public Owned<textkit_ids, textkit_ids_free> {
 public:
  std::vector<int32_t> vector() const { return {buffer_.data, buffer_.data + buffer_.size}; }
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
    case TEXTKIT_UNAVAILABLE:
      return Error{ErrorCode::kUnavailable, prefix + message.str() + ": try again later"};
    case TEXTKIT_OK:
    case TEXTKIT_INTERNAL:
      break;
  }
  return internal_error(prefix + message.str());
}

}  // namespace volley::text
