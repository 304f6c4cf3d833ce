#include "serve/http/random_id.h"

#include <unistd.h>

#include <array>
#include <string_view>

#include "base/check.h"

namespace volley::serve {

std::string random_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<unsigned char, 16> bytes{};
  VOLLEY_CHECK_EQ(::getentropy(bytes.data(), bytes.size()), 0);  // it fails only for longer requests
  std::string id;
  id.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    id += kDigits[byte >> 4];
    id += kDigits[byte & 15];
  }
  return id;
}

}  // namespace volley::serve
