#include "serve/files/multipart.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/text.h"
#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

ApiError malformed(std::string_view what) {
  return invalid_body("The body is not multipart/form-data: " + std::string(what) + ".");
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

// Reads a parameter's value in either form; \" and \\ stand for " and \.
std::optional<std::string> unquote(std::string_view value) {
  if (!value.starts_with('"')) return std::string(value);
  if (value.size() < 2 || !value.ends_with('"')) return std::nullopt;
  value = value.substr(1, value.size() - 2);
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i] == '"') return std::nullopt;
    if (value[i] == '\\' && i + 1 < value.size() && (value[i + 1] == '"' || value[i + 1] == '\\')) ++i;
    out.push_back(value[i]);
  }
  return out;
}

// Cuts "a=1; b="x;y"" after its first parameter. The rest begins behind the ";".
std::string_view take_parameter(std::string_view* rest) {
  bool quoted = false;
  size_t end = 0;
  for (; end < rest->size() && (quoted || (*rest)[end] != ';'); ++end) {
    if ((*rest)[end] == '"') quoted = !quoted;
    if (quoted && (*rest)[end] == '\\' && end + 1 < rest->size()) ++end;
  }
  const std::string_view parameter = trim(rest->substr(0, end));
  rest->remove_prefix(std::min(rest->size(), end + 1));
  return parameter;
}

// Calls `on` with each parameter behind the first ";", its name in lower case. False: one is malformed or comes twice.
template <typename On>
bool read_parameters(std::string_view rest, On on) {
  take_parameter(&rest);
  while (!trim(rest).empty()) {
    const std::string_view parameter = take_parameter(&rest);
    const size_t equals = parameter.find('=');
    if (equals == std::string_view::npos) return false;
    auto value = unquote(trim(parameter.substr(equals + 1)));
    if (!value || !on(lower(trim(parameter.substr(0, equals))), std::move(*value))) return false;
  }
  return true;
}

bool is_plain(std::string_view text) {
  return !find_invalid_utf8(text) && std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 32; });
}

bool set_once(std::optional<std::string>* slot, std::string value) {
  if (*slot || !is_plain(value)) return false;
  *slot = std::move(value);
  return true;
}

// Reads "Name: value" lines without the final empty one.
std::variant<MultipartReader::Part, ApiError> read_part(std::string_view lines) {
  std::optional<std::string> name, filename;
  bool disposed = false;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find(kLineEnd));
    lines.remove_prefix(std::min(lines.size(), line.size() + kLineEnd.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return malformed("a part has a header without a name");
    const std::string header = lower(line.substr(0, colon));
    const std::string_view value = trim(line.substr(colon + 1));
    if (header == "content-transfer-encoding") {
      const std::string encoding = lower(value);
      if (encoding == "binary" || encoding == "8bit" || encoding == "7bit") continue;
      return malformed("a part has another Content-Transfer-Encoding than binary");
    }
    if (header != "content-disposition") continue;
    std::string_view rest = value;
    const bool form = lower(take_parameter(&rest)) == "form-data";
    const bool good = form && !disposed && read_parameters(value, [&](const std::string& key, std::string text) {
                        if (key == "name") return set_once(&name, std::move(text));
                        return key != "filename" || set_once(&filename, std::move(text));
                      });
    if (!good) return malformed("a part's Content-Disposition cannot be read");
    disposed = true;
  }
  if (!name) return malformed("a part has no name");
  return MultipartReader::Part{std::move(*name), std::move(filename)};
}

}  // namespace

std::optional<std::string> MultipartReader::boundary_of(std::string_view content_type) {
  constexpr std::string_view kOthers = "'()+_,-./:=? ";
  std::string_view rest = content_type;
  if (lower(take_parameter(&rest)) != "multipart/form-data") return std::nullopt;
  std::optional<std::string> boundary;
  const bool good = read_parameters(content_type, [&](const std::string& key, std::string value) {
    return key != "boundary" || set_once(&boundary, std::move(value));
  });
  const auto allowed = [&](unsigned char c) {
    return std::isalnum(c) || kOthers.find(char(c)) != std::string_view::npos;
  };
  if (!good || !boundary || boundary->empty() || boundary->size() > kMaxBoundary || boundary->back() == ' ' ||
      !std::all_of(boundary->begin(), boundary->end(), allowed)) {
    return std::nullopt;
  }
  return boundary;
}

MultipartReader::Verdict MultipartReader::feed(std::string_view bytes) {
  buffer_.append(bytes);
  for (bool more = true; more;) {
    if (auto error = step(&more)) return error;
  }
  return std::nullopt;
}

MultipartReader::Verdict MultipartReader::finish() const {
  if (at_ == At::kEnd) return std::nullopt;
  return malformed("it ends before its last boundary");
}

MultipartReader::Verdict MultipartReader::step(bool* more) {
  switch (at_) {
    case At::kStart:
      return start(more);
    case At::kDelimiter:
      return behind_delimiter(more);
    case At::kHeaders:
      return headers(more);
    case At::kData:
      return data(more);
    case At::kEnd:
      return end(more);
  }
  return std::nullopt;
}

// The first boundary has no line end before it. Clients send no preamble, so one is refused.
MultipartReader::Verdict MultipartReader::start(bool* more) {
  const std::string_view first = std::string_view(delimiter_).substr(kLineEnd.size());
  if (!first.starts_with(std::string_view(buffer_).substr(0, first.size()))) {
    return malformed("it does not begin with the boundary that Content-Type names");
  }
  *more = buffer_.size() >= first.size();
  if (!*more) return std::nullopt;
  drop(first.size());
  at_ = At::kDelimiter;
  return std::nullopt;
}

MultipartReader::Verdict MultipartReader::behind_delimiter(bool* more) {
  *more = buffer_.size() >= 2;
  if (!*more) return std::nullopt;
  if (buffer_.starts_with("--")) {
    at_ = At::kEnd;
  } else if (!buffer_.starts_with(kLineEnd)) {
    return malformed("a boundary is not followed by a line end");
  } else if (++parts_ > kMaxParts) {
    return malformed("it has more than " + std::to_string(kMaxParts) + " parts");
  } else {
    at_ = At::kHeaders;
  }
  drop(2);
  return std::nullopt;
}

MultipartReader::Verdict MultipartReader::headers(bool* more) {
  constexpr std::string_view kEmptyLine = "\r\n\r\n";
  const size_t found = buffer_.find(kEmptyLine);
  *more = found != std::string::npos;
  // The last bytes may begin the empty line, which does not count.
  const size_t least = *more ? found : buffer_.size() - std::min(buffer_.size(), kEmptyLine.size() - 1);
  if (least > kMaxHeaderBytes) return malformed("a part's headers are too long");
  if (!*more) return std::nullopt;
  auto part = read_part(std::string_view(buffer_).substr(0, found + kLineEnd.size()));
  if (auto* error = std::get_if<ApiError>(&part)) return std::move(*error);
  if (auto refused = hooks_.begin(std::get<Part>(part))) return refused;
  drop(found + kEmptyLine.size());
  at_ = At::kData;
  return std::nullopt;
}

MultipartReader::Verdict MultipartReader::data(bool* more) {
  const size_t found = buffer_.find(delimiter_);
  *more = found != std::string::npos;
  // The last bytes may begin a boundary.
  const size_t sure = *more ? found : buffer_.size() - std::min(buffer_.size(), delimiter_.size() - 1);
  if (sure > 0) {
    if (auto refused = hooks_.data(std::string_view(buffer_).substr(0, sure))) return refused;
  }
  drop(*more ? found + delimiter_.size() : sure);
  if (*more) at_ = At::kDelimiter;
  return std::nullopt;
}

// A line end may follow. Clients send no epilogue, so one is refused.
MultipartReader::Verdict MultipartReader::end(bool* more) {
  *more = false;
  if (kLineEnd.starts_with(buffer_)) return std::nullopt;
  return malformed("bytes follow its last boundary");
}

}  // namespace volley::serve
