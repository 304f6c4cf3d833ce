#include "serve/http/http.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace volley::serve {
namespace {

const char* reason_phrase(int status) {
  constexpr std::pair<int, const char*> kPhrases[] = {
      {200, "OK"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {421, "Misdirected Request"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
  };
  const auto found = std::ranges::find(kPhrases, status, &std::pair<int, const char*>::first);
  return found != std::end(kPhrases) ? found->second : "Unknown";
}

std::string http_date(std::time_t now) {
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  const size_t size = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return std::string(text.data(), size);
}

void add_header(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ").append(value).append("\r\n");
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string response_head(const HttpResponse& response, const Framing& framing) {
  std::string head = framing.http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ";
  head.append(std::to_string(response.status)).append(" ").append(reason_phrase(response.status)).append("\r\n");
  add_header(head, "Date", http_date(framing.now));
  add_header(head, "Server", "volley");
  if (!response.content_type.empty()) add_header(head, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add_header(head, name, value);
  const bool bodiless = response.status == 204 || response.status == 304;
  if (bodiless) {
    // Neither has a body, so neither may state a length.
  } else if (!framing.chunked) {
    add_header(head, "Content-Length", std::to_string(response.file ? response.file->bytes : response.body.size()));
  } else if (!framing.http_1_0) {
    add_header(head, "Transfer-Encoding", "chunked");
  }
  add_header(head, "Connection", framing.keep_alive ? "keep-alive" : "close");
  head.append("\r\n");
  return head;
}

std::string body_piece(std::string_view data, const Framing& framing) {
  if (framing.http_1_0) return std::string(data);
  std::array<char, 16> size{};
  const auto end = std::to_chars(size.data(), size.data() + size.size(), data.size(), 16).ptr;
  std::string piece(size.data(), end);
  piece.append("\r\n").append(data).append("\r\n");
  return piece;
}

std::string_view body_end(const Framing& framing) {
  return framing.http_1_0 ? "" : "0\r\n\r\n";
}

std::string query_value(const HttpRequest& request, std::string_view name) {
  const size_t begin = request.target.find('?');
  if (begin == std::string::npos) return "";
  std::string_view rest = std::string_view(request.target).substr(begin + 1);
  rest = rest.substr(0, rest.find('#'));
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    if (pair.starts_with(name) && pair.size() > name.size() && pair[name.size()] == '=') {
      return percent_decode(pair.substr(name.size() + 1)).value_or("");
    }
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
  }
  return "";
}

std::string single_slashes(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]);
    const int low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

}  // namespace volley::serve
