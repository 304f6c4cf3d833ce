// A line of a batch in OpenAI's format: {custom_id, method, url, body} in, {id, custom_id, response, error} out. Pure.
#pragma once

#include <volley/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "serve/http/http.h"

namespace volley::serve {

// Why a line is no request: the result line's "error".
struct LineError {
  std::string code;     // for programs: "invalid_line", "unsupported_url", …
  std::string message;  // a sentence
};

// The "custom_id" of an input or result line. kInvalidArgument: the line is not a JSON object with one.
Result<std::string> read_custom_id(std::string_view line);

// URLs of lines, and a sentence's list of them.
bool is_batch_url(std::string_view url);
std::string batch_urls();

// The request of an input line, with its body byte for byte. REQUIRES: read_custom_id(line) is ok.
std::variant<HttpRequest, LineError> read_batch_request(std::string_view line);

// The engine's priority for a stated one. Batch lines come behind all else of their tenant: they use the upper half of
// the range, in which extreme priorities become equal.
int32_t queue_priority(int32_t stated, bool is_batch_line);

// Whether a result line reports a failure: an error, or a response whose status is not 200. REQUIRES: as above.
bool is_failure(std::string_view result_line);

// Result lines, without a newline. `id` is the line's name and the response's request_id.
std::string response_line(const std::string& id, const std::string& custom_id, const HttpResponse& response);
std::string error_line(const std::string& id, const std::string& custom_id, const LineError& error);

}  // namespace volley::serve
