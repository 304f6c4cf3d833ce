// A blocking HTTP client for tests, on plain sockets, which can send invalid bytes. Every wait is bounded. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace volley::serve {

// A response; false: the connection ended before it was complete.
struct ClientResponse {
  explicit operator bool() const { return status != 0; }

  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

class Client {
 public:
  // receive_buffer: bytes that the kernel may hold for a slow reader; 0: its default.
  explicit Client(uint16_t port, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(std::string_view bytes);  // false: the server closed
  // The next response on the connection.
  ClientResponse receive(bool head_only = false);
  // Waits until `text` was received, and leaves all bytes for receive().
  bool wait_for(std::string_view text);
  bool wait_for_close();
  // Reads available bytes, at most 16 KiB, for receive(). Waits if there are none; false: the server closed.
  bool fill();
  void send_end();  // ends the client's side, which still reads
  void close();

  ClientResponse get(const std::string& path);
  ClientResponse post(const std::string& path, const std::string& json);

  static std::string get_text(const std::string& path);
  static std::string post_text(const std::string& path, const std::string& json);

 private:
  std::optional<std::string> read_line();  // without its line end
  std::optional<std::string> read_bytes(size_t size);

  int socket_ = -1;
  std::string received_;
};

// The payloads of a stream's "data:" lines.
std::vector<std::string> stream_events(const std::string& body);

}  // namespace volley::serve
