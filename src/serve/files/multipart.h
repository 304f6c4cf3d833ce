// Reads multipart/form-data (RFC 7578) as the bytes come, without keeping them: strict and bounded. One thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "serve/json/errors.h"

namespace volley::serve {

class MultipartReader {
 public:
  static constexpr size_t kMaxBoundary = 70;  // RFC 2046
  static constexpr size_t kMaxHeaderBytes = 8192;
  static constexpr int kMaxParts = 16;

  struct Part {
    std::string name;
    std::optional<std::string> filename;  // as sent, never a path
  };
  // An error ends the reading.
  using Verdict = std::optional<ApiError>;
  struct Hooks {
    std::function<Verdict(const Part&)> begin;
    std::function<Verdict(std::string_view bytes)> data;  // called for the last begun part, any number of times
  };

  // The boundary in a Content-Type; nothing: no multipart/form-data, or no valid boundary.
  static std::optional<std::string> boundary_of(std::string_view content_type);

  MultipartReader(const std::string& boundary, Hooks hooks)
      : delimiter_("\r\n--" + boundary), hooks_(std::move(hooks)) {}

  Verdict feed(std::string_view bytes);
  // Ends the body. An error: its last boundary is missing.
  Verdict finish() const;

 private:
  enum class At { kStart, kDelimiter, kHeaders, kData, kEnd };

  Verdict step(bool* more);
  Verdict start(bool* more);
  Verdict behind_delimiter(bool* more);
  Verdict headers(bool* more);
  Verdict data(bool* more);
  Verdict end(bool* more);
  void drop(size_t bytes) { buffer_.erase(0, bytes); }

  const std::string delimiter_;  // includes the line end before it
  const Hooks hooks_;
  At at_ = At::kStart;
  std::string buffer_;  // bytes that cannot be told apart yet
  int parts_ = 0;
};

}  // namespace volley::serve
