#include "apps/model_location.h"

#include <filesystem>

namespace volley::apps {

namespace fs = std::filesystem;

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

}  // namespace volley::apps
