#include "apps/cli/model_location.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/cli/known_drafters.h"
#include "base/environment.h"
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

bool is_later_part(const std::string& file) {
  const size_t part = part_at(file);
  return part != std::string::npos && file.substr(part, 6) != "-00001";
}

// The revision main of a repository in the hub's cache.
std::optional<fs::path> snapshot_in(const fs::path& repository) {
  constexpr size_t kMaxRevisionBytes = 256;
  const Result<std::string> revision = read_file((repository / "refs" / "main").string(), kMaxRevisionBytes);
  if (!revision.ok()) return std::nullopt;
  const std::string commit(trim(*revision));
  const fs::path snapshot = repository / "snapshots" / commit;
  std::error_code ignored;
  if (commit.empty() || commit.find('/') != std::string::npos || !fs::is_directory(snapshot, ignored)) {
    return std::nullopt;
  }
  return snapshot;
}

// A GGUF file in a cache: "ORG/REPOSITORY/FILE.gguf", or Ollama's "NAME:TAG".
struct CachedFile {
  std::string name, path;
};

bool is_model_file(const std::string& file) {
  const std::string name = in_lower_case(file.substr(file.rfind('/') + 1));
  return name.ends_with(kGguf) && !name.starts_with("mmproj") && !is_later_part(file);
}

void add_hub(const fs::path& cache, std::vector<CachedFile>& files) {
  std::error_code ends;
  for (fs::directory_iterator it(cache, ends), end; !ends && it != end; it.increment(ends)) {
    std::string name = it->path().filename().string();
    const size_t cut = name.find("--", kModelFolder.size());
    if (!name.starts_with(kModelFolder) || cut == std::string::npos) continue;
    name = name.replace(cut, 2, "/").substr(kModelFolder.size());
    const auto snapshot = snapshot_in(it->path());
    if (!snapshot) continue;
    for (const std::string& file : files_below(*snapshot)) {
      if (is_model_file(file)) files.push_back({name + "/" + file, (*snapshot / file).string()});
    }
  }
}

// The blob of a manifest's model; empty: it has none on this disk.
std::string ollama_blob(const fs::path& folder, const fs::path& manifest) {
  constexpr size_t kMaxManifestBytes = 1 << 20;
  constexpr std::string_view kHash = "sha256:";
  const Result<std::string> text = read_file(manifest.string(), kMaxManifestBytes);
  if (!text.ok()) return "";
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("layers") || !json["layers"].is_array()) return "";
  for (const auto& layer : json["layers"]) {
    if (!layer.is_object() || layer.value("mediaType", nlohmann::json()) != "application/vnd.ollama.image.model")
      continue;
    const auto digest = layer.value("digest", nlohmann::json());
    if (!digest.is_string()) continue;
    const auto hash = digest.get<std::string>();
    const bool is_hash = hash.starts_with(kHash) && std::ranges::all_of(hash.substr(kHash.size()), [](unsigned char c) {
                           return std::isxdigit(c) != 0;
                         });
    std::error_code ignored;
    const fs::path blob = folder / "blobs" / ("sha256-" + hash.substr(std::min(kHash.size(), hash.size())));
    if (is_hash && fs::is_regular_file(blob, ignored)) return blob.string();
  }
  return "";
}

void add_ollama(const fs::path& folder, std::vector<CachedFile>& files) {
  const fs::path manifests = folder / "manifests";
  for (std::string name : files_below(manifests)) {
    const std::string path = ollama_blob(folder, manifests / name);
    if (path.empty() || name.find('/') == std::string::npos) continue;
    name[name.rfind('/')] = ':';
    for (const std::string_view usual : {"registry.ollama.ai/library/", "registry.ollama.ai/"}) {
      if (name.starts_with(usual)) name.erase(0, usual.size());
    }
    files.push_back({std::move(name), path});
  }
}

std::vector<CachedFile> cached_files(const ModelCaches& caches) {
  std::vector<CachedFile> files;
  if (!caches.hub.empty()) add_hub(caches.hub, files);
  for (const std::string& folder : caches.lm_studio) {
    for (const std::string& file : files_below(folder)) {
      if (is_model_file(file)) files.push_back({file, folder + "/" + file});
    }
  }
  if (!caches.ollama.empty()) add_ollama(caches.ollama, files);
  return files;
}

// Whether the last parts of a path are `text`: all of them, or those behind some '/'.
bool ends_path(const std::string& path, const std::string& text) {
  return !text.empty() && path.ends_with(text) &&
         (path.size() == text.size() || path[path.size() - text.size() - 1] == '/');
}

bool is_meant(const std::string& text, const std::string& name) {
  const std::string asked = in_lower_case(text), file = in_lower_case(name);
  const size_t colon = asked.find(':');
  if (!file.ends_with(kGguf)) return file == asked || (colon == std::string::npos && file.starts_with(asked + ":"));
  const std::string repository = file.substr(0, file.find('/', file.find('/') + 1));
  const std::string stem = file.substr(0, file.size() - kGguf.size());
  if (colon != std::string::npos) {
    return ends_path(repository, asked.substr(0, colon)) && has_quant(name, asked.substr(colon + 1));
  }
  const size_t part = part_at(file);
  return ends_path(file, asked) || ends_path(stem, asked) || ends_path(repository, asked) ||
         (part != std::string::npos && ends_path(file.substr(0, part), asked));
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
    if (!file.ends_with(kGguf) || is_later_part(file)) return false;
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
  const auto snapshot = snapshot_in(fs::path(hub_cache) / model->cache_folder());
  if (!snapshot) return {text, name_of_folder(text)};
  if (!model->is_gguf()) return {snapshot->string(), text};
  const std::vector<std::string> files = choose_gguf(files_below(*snapshot), *model);
  return files.empty() ? LocatedModel{text, name_of_folder(text)}
                       : LocatedModel{(*snapshot / files.front()).string(), text};
}

ModelCaches model_caches() {
  return {env_hf_hub_cache(), env_ollama_models(), env_lm_studio_models()};
}

Result<LocatedModel> find_model(const std::string& text, const ModelCaches& caches) {
  std::error_code ignored;
  LocatedModel located = locate_model(text, caches.hub);
  const fs::path path = located.dir;
  const bool is_found =
      located.dir != text && (fs::is_regular_file(path, ignored) || fs::exists(path / "config.json", ignored));
  if (is_found || fs::exists(text, ignored)) return located;
  std::vector<CachedFile> files = cached_files(caches);
  std::erase_if(files, [&](const CachedFile& file) { return !is_meant(text, file.name); });
  const auto latest = std::ranges::find(files, in_lower_case(text) + ":latest",
                                        [](const CachedFile& file) { return in_lower_case(file.name); });
  if (latest != files.end()) files = {CachedFile(*latest)};  // Ollama's rule
  std::vector<std::string> names;                            // where two caches have a name, the first file counts
  for (const CachedFile& file : files) {
    if (std::ranges::find(names, file.name) == names.end()) names.push_back(file.name);
  }
  if (names.empty()) return located;
  if (names.size() == 1) return LocatedModel{files.front().path, text};
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return invalid_argument(text + " may be " + list + ": give one of these names.");
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
