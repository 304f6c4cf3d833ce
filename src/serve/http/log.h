// The server's log: sentences, and one record for each request, as text or as one JSON object a line. Any thread.
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

// A request and its outcome.
struct AccessRecord {
  struct Tokens {
    int64_t prompt = 0, cached = 0, completion = 0;
  };
  std::string_view request_id;
  std::string_view method;  // empty: the bytes were no request
  std::string_view path;    // from a bounded set
  int status = 0;           // 0: the client left before there was one
  double seconds = 0;       // from the request's last byte to the answer's last
  bool delivered = true;    // false: the client left before the end
  std::string_view error;   // code of an answer that is an error or was given up
  std::string_view reason;  // an error's message, which must not quote prompts
  std::optional<Tokens> tokens;
};

// A sentence in a logger's format. `level`: a spdlog::level::level_enum.
std::string log_payload(LogFormat format, int level, std::string_view message);

// Makes a client's text safe for a log line: at most `max_bytes`, without characters that steer a terminal or hide.
std::string for_log(std::string_view text, size_t max_bytes);

class ServerLog {
 public:
  // For kJson the logger's pattern must be "%v", because a record has its own time and level. Null: no log.
  ServerLog(std::shared_ptr<spdlog::logger> logger, LogFormat format);

  void debug(std::string_view message) const;
  void info(std::string_view message) const;
  void warn(std::string_view message) const;
  void error(std::string_view message) const;
  // Probes and scrapes come every few seconds, so they are logged only for debugging.
  void access(const AccessRecord& record) const;
  void prompt(std::string_view request_id, std::string_view text) const;  // cut to 8 KiB

 private:
  void sentence(int level, std::string_view message) const;

  std::shared_ptr<spdlog::logger> logger_;
  LogFormat format_;
};

}  // namespace volley::serve
