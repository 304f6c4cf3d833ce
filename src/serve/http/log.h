// What the server writes to its log: sentences, and one record a request, as text or as one JSON object a line. Any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace spdlog {
class logger;
}

namespace volley::serve {

enum class LogFormat { kText, kJson };

// A request and what became of it.
struct AccessRecord {
  struct Tokens {
    int64_t prompt = 0, cached = 0, completion = 0;
  };
  std::string_view request_id;
  std::string_view method;  // empty: the bytes were no request
  std::string_view path;    // of a bounded set
  int status = 0;           // 0: the client left before there was one
  double seconds = 0;       // from the last byte of the request to the last of the answer
  bool delivered = true;    // false: the client left before the end
  std::string_view error;   // of an answer that is an error or was given up: its code
  std::string_view reason;  // of one that is an error: its message, which must not quote prompts
  std::optional<Tokens> tokens;
};

// A sentence as a logger of this format takes it. `level`: a spdlog::level::level_enum.
std::string log_payload(LogFormat format, int level, std::string_view message);

// What a client sent, as a line of text can hold it: at most `max_bytes`, nothing that steers a terminal or hides
// there.
std::string for_log(std::string_view text, size_t max_bytes);

class ServerLog {
 public:
  // For kJson the logger's pattern must be "%v": a record says its own time and level. Null: no log.
  ServerLog(std::shared_ptr<spdlog::logger> logger, LogFormat format);

  void debug(std::string_view message) const;
  void info(std::string_view message) const;
  void warn(std::string_view message) const;
  void error(std::string_view message) const;
  // Probes and scrapes come every few seconds: they are for debugging.
  void access(const AccessRecord& record) const;
  void prompt(std::string_view request_id, std::string_view text) const;  // cut to 8 KiB

 private:
  void sentence(int level, std::string_view message) const;

  std::shared_ptr<spdlog::logger> logger_;
  LogFormat format_;
};

}  // namespace volley::serve
