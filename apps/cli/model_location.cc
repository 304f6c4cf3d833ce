#include "apps/cli/model_location.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>

#include "apps/cli/known_drafters.h"
#include "base/file.h"
#include "base/text.h"

namespace volley::apps {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kModelFolder = "models--";
constexpr std::string_view kGguf = ".gguf";

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// "Model-Q4_K_M.gguf" and "Model-Q4_K_M-00001-of-00002.gguf" both have the quantisation q4_k_m.
bool has_quant(const std::string& file, const std::string& quant) {
  const std::string name = in_lower_case(file.substr(file.rfind('/') + 1));
  for (size_t at = name.find(quant); at != std::string::npos; at = name.find(quant, at + 1)) {
    const char after = name[at + quant.size()];  // may be the ending
    const bool begins = at == 0 || name[at - 1] == '-' || name[at - 1] == '.' || name[at - 1] == '_';
    if (begins && (after == '.' || after == '-')) return !name.starts_with("mmproj");
  }
  return false;
}

// Index of "-00001-of-00002.gguf"; npos: the file is whole.
size_t part_at(const std::string& file) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (file.size() < kForm.size()) return std::string::npos;
  const size_t begin = file.size() - kForm.size();
  const bool fits = std::ranges::equal(file.substr(begin), kForm, [](char c, char form) {
    return form == '0' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == form;
  });
  return fits ? begin : std::string::npos;
}

std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code ends;
  for (fs::recursive_directory_iterator it(folder, ends), end; !ends && it != end; it.increment(ends)) {
    if (fs::is_regular_file(it->path(), ends)) files.push_back(it->path().lexically_relative(folder).string());
    ends.clear();  // a dangling link
  }
  std::ranges::sort(files);
  return files;
}

std::string name_of_folder(const std::string& dir) {
  std::error_code error;  // only the name is known then
  fs::path path = fs::absolute(dir, error).lexically_normal();
  if (error) path = dir;
  if (!path.has_filename()) path = path.parent_path();
  const std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() == "snapshots" && repository.starts_with(kModelFolder)) {
    std::string name = repository.substr(kModelFolder.size());
    if (const size_t cut = name.find("--"); cut != std::string::npos) name.replace(cut, 2, "/");
    return name;
  }
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
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

std::string HubModel::cache_folder() const {
  const size_t slash = repository.find('/');
  return std::string(kModelFolder) + repository.substr(0, slash) + "--" + repository.substr(slash + 1);
}

std::optional<HubModel> parse_hub_model(const std::string& text) {
  HubModel model{text, {}, {}};
  const size_t slash = text.find('/'), colon = text.find(':');
  const size_t second = slash == std::string::npos ? slash : text.find('/', slash + 1);
  if (second != std::string::npos && text.ends_with(kGguf)) {
    model.repository = text.substr(0, second);
    model.file = fs::path(text.substr(second + 1)).lexically_normal().string();
    if (model.file.empty() || model.file.starts_with('/') || model.file.starts_with("..")) return std::nullopt;
  } else if (colon != std::string::npos) {
    model.repository = text.substr(0, colon);
    model.quant = in_lower_case(text.substr(colon + 1));
    if (model.quant.empty()) return std::nullopt;
  }
  return is_hub_name(model.repository) ? std::optional(model) : std::nullopt;
}

std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const HubModel& model) {
  const auto is_meant = [&](const std::string& file) {
    const size_t part = part_at(file);
    if (!file.ends_with(kGguf) || (part != std::string::npos && file.substr(part, 6) != "-00001")) return false;
    return model.file.empty() ? has_quant(file, model.quant) : file == model.file;
  };
  const auto first = std::ranges::find_if(files, is_meant);
  if (first == files.end()) return {};
  const size_t part = part_at(*first);
  if (part == std::string::npos) return {*first};
  std::vector<std::string> parts;
  for (const std::string& file : files) {
    if (part_at(file) == part && file.starts_with(first->substr(0, part))) parts.push_back(file);
  }
  return parts;
}

LocatedModel locate_model(const std::string& text, const std::string& hub_cache) {
  std::error_code ignored;
  const auto model = parse_hub_model(text);
  if (!model || hub_cache.empty() || fs::exists(text, ignored)) return {text, name_of_folder(text)};
  const fs::path folder = fs::path(hub_cache) / model->cache_folder();
  constexpr size_t kMaxRevisionBytes = 256;
  const Result<std::string> revision = read_file((folder / "refs" / "main").string(), kMaxRevisionBytes);
  if (!revision.ok()) return {text, name_of_folder(text)};
  const std::string commit(trim(*revision));
  const fs::path snapshot = folder / "snapshots" / commit;
  if (commit.empty() || commit.find('/') != std::string::npos || !fs::is_directory(snapshot, ignored)) {
    return {text, name_of_folder(text)};
  }
  if (!model->is_gguf()) return {snapshot.string(), text};
  const std::vector<std::string> files = choose_gguf(files_below(snapshot), *model);
  return files.empty() ? LocatedModel{text, name_of_folder(text)}
                       : LocatedModel{(snapshot / files.front()).string(), text};
}

Result<std::vector<std::string>> drafter_names(const std::string& draft) {
  std::vector<std::string> names;
  std::istringstream list(draft);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  if (names.size() > 2) return invalid_argument("--draft names more than two drafters: leave some out.");
  if (names.size() > 1 && std::ranges::count(names, "none") > 0) {
    return invalid_argument("--draft none says that there is no drafter: leave it or the other one out.");
  }
  return names;
}

Result<LocatedModel> locate_known_drafter(const LocatedModel& target, const std::string& hub_cache) {
  const auto drafter = known_drafter(target.name);
  if (!drafter) {
    return not_found("--draft auto knows no drafter for " + target.name + ": name one with --draft, or leave it out.");
  }
  LocatedModel located = locate_model(*drafter, hub_cache);
  if (located.dir != *drafter) return located;
  return not_found("The drafter of " + target.name + " is not in " + (hub_cache.empty() ? "any cache" : hub_cache) +
                   ": get it with volley pull " + *drafter + ", or name its folder with --draft.");
}

}  // namespace volley::apps
