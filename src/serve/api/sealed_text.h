// Thoughts that a client sends back as it got them: "encrypted_content" of the Responses API, "signature" of the
// Messages API. Here it holds the text itself, as Base64, for clients that keep nothing else of a thought. It is no
// secret.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::serve {

std::string seal_text(std::string_view text);
// Nothing: seal_text() has not made it.
std::optional<std::string> unseal_text(std::string_view sealed);

}  // namespace volley::serve
