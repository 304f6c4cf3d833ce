// The answers of POST /v1/messages: a message object, or the events by which it grows; and the errors of that API.
// Pure; one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/api/openai_response.h"
#include "serve/http/http.h"

namespace volley::serve {

// `seals_thoughts`: blocks of thoughts have no text, but a signature from which the next request gets it back.
std::unique_ptr<ResponseWriter> messages_writer(ResponseInfo info, bool stream, bool seals_thoughts);

// Whether requests for this target are answered in the form of the Messages API, errors too. Paths of that API that
// this server does not have are among them.
bool is_messages_path(std::string_view target);
// An error_response() in that form.
void write_messages_error(const std::string& request_id, HttpResponse& response);

}  // namespace volley::serve
