#include "text/model_file.h"

#include "base/file.h"

namespace volley::text {
namespace {

// Vocabularies of 260,000 tokens take some 35 MB.
constexpr size_t kMaxModelFileBytes = size_t{256} << 20;

}  // namespace

Result<std::optional<std::string>> read_model_file(const std::string& path) {
  Result<std::string> contents = read_file(path, kMaxModelFileBytes);
  if (contents.ok()) return std::optional(std::move(contents).value());
  if (contents.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return data_loss(contents.error().message);
}

}  // namespace volley::text
