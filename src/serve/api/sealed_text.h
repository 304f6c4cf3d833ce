// Thoughts that a client sends back unchanged: "encrypted_content" of the Responses API, "signature" of the Messages
// API. Here it contains the text itself, as Base64, for clients that keep no more of a thought. It is no secret.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

std::string seal_text(std::string_view text);
// No value: seal_text() did not make it.
std::optional<std::string> unseal_text(std::string_view sealed);

// The bytes that padded Base64 without white space stands for; nothing: it is none.
std::optional<std::string> from_base64(std::string_view text);
std::string to_base64(std::string_view bytes);

}  // namespace volley::serve
