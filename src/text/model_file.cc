#include "text/model_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace volley::text {

Result<std::optional<std::string>> read_model_file(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return std::optional<std::string>();
  std::ifstream file(path, std::ios::binary);
  if (!std::filesystem::is_regular_file(status) || !file) {
    return data_loss(path + " cannot be read: check that it is a file and its permissions");
  }
  std::string contents(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return data_loss(path + " cannot be read to its end: check the disk");
  return std::optional(std::move(contents));
}

}  // namespace volley::text
