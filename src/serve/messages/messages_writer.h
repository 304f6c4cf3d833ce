// Answers of POST /v1/messages: a message object, or its events; and that API's errors. Pure; one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "serve/api/openai_response.h"
#include "serve/http/http.h"

namespace volley::serve {

// `seals_thoughts`: a thought's block has no text, but a signature from which the next request restores it.
std::unique_ptr<ResponseWriter> messages_writer(ResponseInfo info, bool stream, bool seals_thoughts);

// Whether answers to this target, errors too, have the Messages API's form. Includes that API's missing paths.
bool is_messages_path(std::string_view target);
// Gives an error_response() that form.
void write_messages_error(const std::string& request_id, HttpResponse& response);

}  // namespace volley::serve
