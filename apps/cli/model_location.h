// Where models lie: those that come with volley beside an installed program, else in the source tree it was built from;
// those with a name on the Hugging Face hub in the local cache of its tools. Nothing is downloaded here (apps/hub).
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

struct ModelPair {
  std::string target, draft;  // folders
};

// The pocket pair. Looks in PROGRAM/../share/volley/models, then in the source tree. kNotFound names both places.
Result<ModelPair> find_pocket_models();

// The same with the places as arguments, for tests.
Result<ModelPair> find_pocket_models(const std::string& program, const std::string& source_models);

// "ORG/NAME", in the characters of names on the hub.
bool is_hub_name(const std::string& text);

// "ORG/NAME", or one of its GGUF files: "ORG/NAME:Q4_K_M", "ORG/NAME/FILE.gguf".
struct HubModel {
  std::string repository;   // "ORG/NAME"
  std::string quant, file;  // at most one of them

  bool is_gguf() const { return !quant.empty() || !file.empty(); }
  // The cache's folder of the repository: "models--ORG--NAME".
  std::string cache_folder() const;
};
std::optional<HubModel> parse_hub_model(const std::string& text);

// Picks from `files`, relative paths, the GGUF file that is meant, with all its parts, the first one first. Empty:
// there is none.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const HubModel& model);

struct LocatedModel {
  std::string dir;  // as given, where nothing was found
  // The hub's, or the last part of the folder, of a GGUF file without the ending; of a snapshot in a cache the hub's,
  // too.
  std::string name;
};
// `text`: a folder or a GGUF file, which come first, or a HubModel, whose revision main is looked up in `hub_cache`.
LocatedModel locate_model(const std::string& text, const std::string& hub_cache);

// The drafter that is known for `target`, in the cache. kNotFound: none is known, or it is not there; the message says
// how to get it.
Result<LocatedModel> locate_known_drafter(const LocatedModel& target, const std::string& hub_cache);

}  // namespace volley::apps
