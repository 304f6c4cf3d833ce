#include "serve/api/sealed_text.h"

#include <openssl/evp.h>

#include <algorithm>
#include <limits>

#include "serve/json/json_text.h"

namespace volley::serve {
namespace {

constexpr std::string_view kMark = "volley1.";  // Base64 has no dot

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0 || text.size() > std::numeric_limits<int>::max()) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), bytes_of(text), static_cast<int>(text.size()));
  if (size < 0) return std::nullopt;
  const size_t padding = text.size() - std::min(text.find_last_not_of('=') + 1, text.size());
  bytes.resize(bytes.size() - std::min(padding, bytes.size()));
  return bytes;
}

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and a zero byte
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes_of(bytes), static_cast<int>(bytes.size()));
  text.pop_back();
  return text;
}

std::string seal_text(std::string_view text) {
  return std::string(kMark) + to_base64(text);
}

std::optional<std::string> unseal_text(std::string_view sealed) {
  if (!sealed.starts_with(kMark)) return std::nullopt;
  auto text = from_base64(sealed.substr(kMark.size()));
  if (!text || find_invalid_utf8(*text)) return std::nullopt;
  return text;
}

}  // namespace volley::serve
