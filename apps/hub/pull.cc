#include "apps/hub/pull.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>

#include "apps/cli/known_drafters.h"
#include "apps/exit_codes.h"
#include "apps/hub/hub.h"
#include "apps/standard_streams.h"
#include "base/environment.h"
#include "base/file.h"
#include "engine/start/memory_plan.h"

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using engine::format_bytes;

// Whether a model folder needs the file: weights, configurations, tokenizer and template. Copies of the weights have
// other names: consolidated.*, and those in other folders.
bool is_of_folder(const std::string& file) {
  if (file.find('/') != std::string::npos) return false;
  const bool weights = file.starts_with("model") && file.ends_with(".safetensors");
  return weights || file.ends_with(".json") || file.ends_with(".jinja") || file == "merges.txt" ||
         file == "tokenizer.model";
}

// Downloads a model's files one after the other, with one progress for all.
class Pull {
 public:
  Pull(const HubModel& model, const std::string& name, const fs::path& cache, Console* console)
      : model_(model),
        name_(name),
        folder_(cache / model.cache_folder()),
        locks_(cache / ".locks" / model.cache_folder()),
        endpoint_(env_hf_endpoint()),
        hub_(endpoint_, env_hf_token()),
        console_(*console) {}

  Status run() {
    console_.progress("Asking " + endpoint_ + " for " + name_, -1);
    VOLLEY_ASSIGN(const HubListing listing, hub_.list(model_.repository));
    VOLLEY_ASSIGN(const std::vector<std::string> names, choose_files(listing.files, model_));
    std::vector<HubFile> files;
    for (const std::string& file : names) {
      VOLLEY_ASSIGN(HubFile found, hub_.describe(listing, file));
      files.push_back(std::move(found));
    }
    VOLLEY_RETURN_IF_ERROR(make_folders(listing));
    VOLLEY_RETURN_IF_ERROR(check_room(files));
    if (left_ > 0) {
      console_.note("Fetching " + name_ + " from " + endpoint_ + ": " + format_bytes(left_) + " in " +
                    std::to_string(files.size()) + (files.size() == 1 ? " file." : " files."));
    }
    for (const HubFile& file : files) VOLLEY_RETURN_IF_ERROR(take(listing, file));
    // Written last, so that a look-up finds a whole model.
    VOLLEY_RETURN_IF_ERROR(replace(folder_ / "refs" / "main",
                                   [&](const fs::path& path) { std::ofstream(path) << listing.commit << std::flush; }));
    return {};
  }

 private:
  Status make_folders(const HubListing& listing) const {
    for (const fs::path& path : {folder_ / "blobs", folder_ / "refs", folder_ / "snapshots" / listing.commit, locks_}) {
      std::error_code failed;
      fs::create_directories(path, failed);
      if (failed) {
        return invalid_argument(path.string() + " cannot be made (" + failed.message() +
                                "): name a folder for models with HF_HUB_CACHE.");
      }
    }
    return {};
  }

  int64_t size_of(const fs::path& path) const {
    std::error_code none;
    const auto bytes = fs::file_size(path, none);
    return none ? 0 : static_cast<int64_t>(bytes);
  }
  fs::path blob_of(const HubFile& file) const { return folder_ / "blobs" / file.etag; }

  Status check_room(const std::vector<HubFile>& files) {
    for (const HubFile& file : files) {
      std::error_code none;
      if (fs::exists(blob_of(file), none)) continue;
      const int64_t lacks = std::max<int64_t>(0, file.bytes - size_of(blob_of(file).string() + ".incomplete"));
      left_ += std::min(lacks, std::numeric_limits<int64_t>::max() - left_);  // a server may claim any size
    }
    std::error_code unknown;
    const fs::space_info space = fs::space(folder_, unknown);
    if (unknown || static_cast<int64_t>(space.available) >= left_) return {};
    return Error{ErrorCode::kResourceExhausted, name_ + " needs " + format_bytes(left_) + " more, and the disk of " +
                                                    folder_.string() + " has " +
                                                    format_bytes(static_cast<int64_t>(space.available)) +
                                                    ": free some, or name another folder with HF_HUB_CACHE."};
  }

  Status take(const HubListing& listing, const HubFile& file) {
    int64_t before = size_of(blob_of(file).string() + ".incomplete");
    const std::string lock = (locks_ / (file.etag + ".lock")).string();
    const auto waits = [&] { console_.note("Another process fetches " + file.name + ": waiting for it."); };
    VOLLEY_RETURN_IF_ERROR(hub_.fetch(listing, file, blob_of(file).string(), lock, waits, [&](int64_t have) {
      if (have > before) fetched_ += have - before;
      before = have;
      show(file);
    }));
    const fs::path link = folder_ / "snapshots" / listing.commit / file.name;
    std::string target = "../../blobs/" + file.etag;
    for (auto folders = std::ranges::count(file.name, '/'); folders > 0; --folders) target.insert(0, "../");
    std::error_code failed;
    fs::create_directories(link.parent_path(), failed);
    return replace(link, [&](const fs::path& path) { fs::create_symlink(target, path, failed); });
  }

  void show(const HubFile& file) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
    const double rate = static_cast<double>(fetched_) / std::max(seconds.count(), 1e-3);
    console_.progress(file.name + ", " + format_bytes(std::max<int64_t>(0, left_ - fetched_)) + " to go, " +
                          format_bytes(static_cast<int64_t>(rate)) + "/s",
                      static_cast<double>(fetched_) / static_cast<double>(std::max<int64_t>(left_, 1)));
  }

  // Other readers see the old file or the whole new one.
  template <typename Make>
  static Status replace(const fs::path& path, const Make& make) {
    const fs::path made = path.string() + "." + std::to_string(getpid());
    errno = 0;
    make(made);
    return std::rename(made.c_str(), path.c_str()) == 0 ? Status() : write_error(path.string());
  }

  const HubModel& model_;
  const std::string& name_;
  const fs::path folder_, locks_;
  const std::string endpoint_;
  Hub hub_;
  Console& console_;
  int64_t left_ = 0, fetched_ = 0;  // bytes
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Status check_environment(const std::string& cache) {
  if (env_hf_hub_offline()) return invalid_argument("HF_HUB_OFFLINE forbids downloads: unset it to pull a model.");
  if (cache.empty()) return invalid_argument("Nothing says where models are kept: set HF_HUB_CACHE to a folder.");
  const std::string endpoint = env_hf_endpoint();
  if (!endpoint.starts_with("https://") && !endpoint.starts_with("http://")) {
    return invalid_argument("HF_ENDPOINT is " + endpoint + ": it must begin with https:// or http://.");
  }
  if (std::ranges::any_of(env_hf_token(), [](unsigned char c) { return std::isgraph(c) == 0; })) {
    return invalid_argument("HF_TOKEN is no token that a request could send.");
  }
  return {};
}

// An ambiguous name is there, too: the caller that finds the model says so.
bool is_there(const std::string& text) {
  const auto found = find_model(text, model_caches());
  if (!found.ok()) return true;
  const std::string& dir = found->dir;
  std::error_code none;
  return fs::is_regular_file(dir, none) || fs::exists(fs::path(dir) / "config.json", none);
}

Status pull_if_missing(const std::string& text, Console* console) {
  std::error_code none;
  if (!parse_hub_model(text) || is_there(text) || fs::exists(text, none)) return {};
  // A mistyped path must not be sent to another machine.
  if (fs::exists(text.substr(0, text.find('/')), none)) return {};
  const auto pulled = pull_model(text, console);
  return pulled.ok() ? Status() : Status(pulled.error());
}

}  // namespace

Result<std::vector<std::string>> choose_files(const std::vector<std::string>& files, const HubModel& model) {
  if (model.is_gguf()) {
    std::vector<std::string> parts = choose_gguf(files, model);
    std::ranges::reverse(parts);
    if (!parts.empty()) return parts;
  } else {
    std::vector<std::string> chosen;
    std::ranges::copy_if(files, std::back_inserter(chosen), is_of_folder);
    const auto ends = [&chosen](const char* text) {
      return std::ranges::find_if(chosen, [text](const std::string& file) { return file.ends_with(text); });
    };
    const auto config = std::ranges::find(chosen, "config.json");
    if (config != chosen.end() && ends(".safetensors") != chosen.end()) {
      std::rotate(config, config + 1, chosen.end());
      return chosen;
    }
  }
  std::string gguf;
  for (const std::string& file : files) {
    if (file.ends_with(".gguf") && gguf.size() < 1000) gguf += (gguf.empty() ? "" : ", ") + file;
  }
  if (gguf.empty()) {
    return not_found(model.repository +
                     " has no weights that Volley reads: it needs config.json and "
                     "model.safetensors, or a GGUF file.");
  }
  return not_found(model.repository + (model.is_gguf() ? " has no such GGUF file" : " has GGUF files alone") +
                   ": name one as " + model.repository + ":Q4_K_M or " + model.repository + "/FILE. It has " + gguf +
                   ".");
}

Result<std::string> pull_model(const std::string& text, Console* console) {
  const std::string cache = env_hf_hub_cache();
  VOLLEY_RETURN_IF_ERROR(check_environment(cache));
  const auto model = parse_hub_model(text);
  if (!model) {
    return invalid_argument(text +
                            " is no name of the hub: it must be ORG/NAME, ORG/NAME:Q4_K_M or "
                            "ORG/NAME/FILE.gguf.");
  }
  const Status pulled = Pull(*model, text, cache, console).run();
  console->clear_progress();
  if (!pulled.ok()) return pulled.error();
  return locate_model(text, cache).dir;
}

Status pull_missing(const EngineFlags& flags, Console* console) {
  if (flags.offline || env_hf_hub_offline() || !flags.model) return {};
  VOLLEY_RETURN_IF_ERROR(pull_if_missing(*flags.model, console));
  if (!flags.draft || flags.draft == "none") return {};
  VOLLEY_ASSIGN(const std::vector<std::string> names, drafter_names(*flags.draft));
  for (const std::string& name : names) {
    std::optional<std::string> drafter = name;
    if (name == "auto") drafter = known_drafter(locate_model(*flags.model, env_hf_hub_cache()).name);
    if (drafter) VOLLEY_RETURN_IF_ERROR(pull_if_missing(*drafter, console));
  }
  return {};
}

int run_pull(const PullCommand& command, Console* console) {
  if (!command.model) return console->fail("volley pull needs a name: volley pull ORG/NAME", kExitUsage);
  std::vector<std::string> names = {*command.model};
  const auto known = known_drafter(*command.model);
  if (command.draft == "auto" && !known) {
    return console->fail("--draft auto knows no drafter for " + *command.model + ": name one with --draft.",
                         kExitUsage);
  }
  if (!command.draft || command.draft == "auto") {
    if (known) names.push_back(*known);
  } else if (command.draft != "none") {
    const auto drafters = drafter_names(*command.draft);
    if (!drafters.ok()) return console->fail(drafters.error().message, kExitUsage);
    names.insert(names.end(), drafters->begin(), drafters->end());
  }
  for (const std::string& name : names) {
    const auto dir = pull_model(name, console);
    if (!dir.ok()) {
      return console->fail(dir.error().message,
                           dir.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitModel);
    }
    std::printf("%s\n", dir->c_str());
  }
  const Status written = flush_standard_output();
  return written.ok() ? kExitOk : console->fail(written.error().message, kExitUsage);
}

}  // namespace volley::apps
