#include "apps/model_location.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "apps/known_drafters.h"
#include "base/file.h"
#include "base/text.h"

namespace volley::apps {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kModelFolder = "models--";

// "models--ORG--NAME"
std::string cache_folder(const std::string& hub_name) {
  const size_t slash = hub_name.find('/');
  return std::string(kModelFolder) + hub_name.substr(0, slash) + "--" + hub_name.substr(slash + 1);
}

std::string name_of_folder(const std::string& dir) {
  std::error_code error;  // then the name is all there is
  fs::path path = fs::absolute(dir, error).lexically_normal();
  if (error) path = dir;
  if (!path.has_filename()) path = path.parent_path();
  const std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() == "snapshots" && repository.starts_with(kModelFolder)) {
    std::string name = repository.substr(kModelFolder.size());
    if (const size_t cut = name.find("--"); cut != std::string::npos) name.replace(cut, 2, "/");
    return name;
  }
  return path.filename().string();
}

}  // namespace

Result<ModelPair> find_pocket_models(const std::string& program, const std::string& source_models) {
  const fs::path installed = fs::path(program).parent_path().parent_path() / "share" / "volley" / "models";
  for (const fs::path& folder : {installed, fs::path(source_models)}) {
    std::error_code ignored;
    if (fs::exists(folder / "pocket" / "config.json", ignored) &&
        fs::exists(folder / "pocket-dflash" / "config.json", ignored)) {
      return ModelPair{(folder / "pocket").string(), (folder / "pocket-dflash").string()};
    }
  }
  return not_found("The pocket models are neither in " + installed.string() + " nor in " + source_models +
                   ": give --model DIR, or install volley with cmake --install.");
}

Result<ModelPair> find_pocket_models() {
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  return find_pocket_models(program.string(), VOLLEY_SOURCE_MODELS);
}

bool is_hub_name(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == text.size() || text.front() == '.') return false;
  return std::ranges::count(text, '/') == 1 && std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
         });
}

LocatedModel locate_model(const std::string& text, const std::string& hub_cache) {
  std::error_code ignored;
  if (!is_hub_name(text) || hub_cache.empty() || fs::exists(text, ignored)) return {text, name_of_folder(text)};
  const fs::path folder = fs::path(hub_cache) / cache_folder(text);
  constexpr size_t kMaxRevisionBytes = 256;
  const Result<std::string> revision = read_file((folder / "refs" / "main").string(), kMaxRevisionBytes);
  if (!revision.ok()) return {text, name_of_folder(text)};
  const std::string commit(trim(*revision));
  const fs::path snapshot = folder / "snapshots" / commit;
  if (commit.empty() || commit.find('/') != std::string::npos || !fs::is_directory(snapshot, ignored)) {
    return {text, name_of_folder(text)};
  }
  return {snapshot.string(), text};
}

Result<LocatedModel> locate_known_drafter(const LocatedModel& target, const std::string& hub_cache) {
  const auto drafter = known_drafter(target.name);
  if (!drafter) {
    return not_found("--draft auto knows no drafter for " + target.name + ": name one with --draft, or leave it out.");
  }
  LocatedModel located = locate_model(*drafter, hub_cache);
  if (located.dir != *drafter) return located;
  return not_found("The drafter of " + target.name + " is not in " + (hub_cache.empty() ? "any cache" : hub_cache) +
                   ": get it with hf download " + *drafter + ", or name its folder with --draft.");
}

}  // namespace volley::apps
