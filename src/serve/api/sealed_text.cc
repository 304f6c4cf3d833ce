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

std::string seal_text(std::string_view text) {
  std::string sealed(kMark);
  const size_t begin = sealed.size();
  sealed.resize(begin + (text.size() + 2) / 3 * 4 + 1);  // and a zero byte
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(sealed.data() + begin), bytes_of(text),
                  static_cast<int>(text.size()));
  sealed.pop_back();
  return sealed;
}

std::optional<std::string> unseal_text(std::string_view sealed) {
  if (!sealed.starts_with(kMark)) return std::nullopt;
  auto text = from_base64(sealed.substr(kMark.size()));
  if (!text || find_invalid_utf8(*text)) return std::nullopt;
  return text;
}

}  // namespace volley::serve
