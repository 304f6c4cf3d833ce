#include "serve/testing/client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace volley::serve {

Client::Client(uint16_t port, int receive_buffer) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  const timeval timeout{120, 0};  // a slow machine is no failure
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(socket_);
    throw std::runtime_error("cannot connect to the server under test");
  }
}

Client::~Client() {
  close();
}

void Client::send_end() {
  ::shutdown(socket_, SHUT_WR);
}

void Client::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool Client::fill() {
  std::array<char, 16384> buffer;
  const ssize_t size = ::recv(socket_, buffer.data(), buffer.size(), 0);
  if (size <= 0) return false;
  received_.append(buffer.data(), static_cast<size_t>(size));
  return true;
}

bool Client::wait_for(std::string_view text) {
  while (received_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

bool Client::wait_for_close() {
  std::array<char, 16384> buffer;
  while (true) {
    const ssize_t size = ::recv(socket_, buffer.data(), buffer.size(), 0);
    if (size == 0) return true;
    if (size < 0) return errno == ECONNRESET;
  }
}

std::optional<std::string> Client::read_line() {
  if (!wait_for("\r\n")) return std::nullopt;
  const size_t end = received_.find("\r\n");
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 2);
  return line;
}

std::optional<std::string> Client::read_bytes(size_t size) {
  while (received_.size() < size) {
    if (!fill()) return std::nullopt;
  }
  std::string bytes = received_.substr(0, size);
  received_.erase(0, size);
  return bytes;
}

ClientResponse Client::receive(bool head_only) {
  auto line = read_line();
  if (!line || line->size() < 12) return {};
  ClientResponse response;
  response.status = std::stoi(line->substr(9, 3));
  while ((line = read_line()) && !line->empty()) {
    const size_t colon = line->find(": ");
    std::string name = line->substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    response.headers[name] = line->substr(colon + 2);
  }
  if (!line) return {};
  if (head_only || response.status == 100) return response;
  if (const auto length = response.headers.find("content-length"); length != response.headers.end()) {
    auto body = read_bytes(std::stoul(length->second));
    if (!body) return {};
    response.body = *body;
  } else if (response.headers.contains("transfer-encoding")) {
    while (true) {
      const auto size_line = read_line();
      if (!size_line) return {};
      const size_t size = std::stoul(*size_line, nullptr, 16);
      const auto piece = read_bytes(size + 2);
      if (!piece) return {};
      if (size == 0) break;
      response.body += piece->substr(0, size);
    }
  } else {
    while (fill()) continue;
    response.body = std::exchange(received_, {});
  }
  return response;
}

std::string Client::get_text(const std::string& path) {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
}

std::string Client::post_text(const std::string& path, const std::string& json) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(json.size()) + "\r\n\r\n" + json;
}

ClientResponse Client::get(const std::string& path) {
  if (!send(get_text(path))) return {};
  return receive();
}

ClientResponse Client::post(const std::string& path, const std::string& json) {
  if (!send(post_text(path, json))) return {};
  return receive();
}

std::vector<std::string> stream_events(const std::string& body) {
  constexpr std::string_view kData = "data: ";
  std::vector<std::string> events;
  for (size_t begin = 0; begin < body.size();) {
    size_t end = body.find("\n\n", begin);
    if (end == std::string::npos) end = body.size();
    std::string event = body.substr(begin, end - begin);
    if (event.starts_with("event: ")) event.erase(0, event.find('\n') + 1);
    if (event.starts_with(kData)) events.push_back(event.substr(kData.size()));
    begin = end + 2;
  }
  return events;
}

}  // namespace volley::serve
