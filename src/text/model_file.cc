#include "text/model_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "gguf/model_file.h"

namespace volley::text {
namespace {

namespace fs = std::filesystem;

// Vocabularies of 260,000 tokens take some 35 MB.
constexpr size_t kMaxModelFileBytes = size_t{256} << 20;

bool lies_in(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// Folders of the cache are REPOSITORY/snapshots/REVISION; their files are links into REPOSITORY/blobs.
fs::path repository_of(const fs::path& folder) {
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" ? snapshots.parent_path() : folder;
}

}  // namespace

Result<std::optional<std::string>> read_model_file(const std::string& path) {
  Result<std::string> contents =
      gguf::lies_in_file(path) ? gguf::read_model_file(path) : read_file(path, kMaxModelFileBytes);
  if (contents.ok()) {
    VOLLEY_RETURN_IF_ERROR(refuse_lfs_pointer(*contents, path));
    return std::optional(std::move(contents).value());
  }
  if (contents.error().code == ErrorCode::kNotFound) return std::optional<std::string>();
  return data_loss(contents.error().message);
}

Result<std::optional<std::string>> read_own_file(const std::string& dir, const std::string& name) {
  const std::string path = dir + "/" + name;
  std::error_code missing;
  const fs::path folder = fs::canonical(dir, missing);
  const fs::path target = fs::canonical(path, missing);
  if (!missing && !lies_in(target, folder) && !lies_in(target, repository_of(folder) / "blobs")) {
    return data_loss(path + " is a link to " + target.string() +
                     ", outside the model's folder: put the file itself there.");
  }
  return read_model_file(path);
}

}  // namespace volley::text
