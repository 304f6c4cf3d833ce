// Finds models. Volley's own lie beside an installed program, or in the source tree that it was built from; others in
// the local caches of Hugging Face's tools, Ollama and LM Studio, under the names that these give them. Only apps/hub
// downloads.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

struct ModelPair {
  std::string target, draft;  // folders
};

// Finds the pocket pair in PROGRAM/../share/volley/models, or in the source tree. kNotFound names both places.
Result<ModelPair> find_pocket_models();

// The same with given places, for tests.
Result<ModelPair> find_pocket_models(const std::string& program, const std::string& source_models);

// Whether the text is "ORG/NAME" in the hub's characters.
bool is_hub_name(const std::string& text);

// "ORG/NAME", or one of its GGUF files: "ORG/NAME:Q4_K_M", "ORG/NAME/FILE.gguf".
struct HubModel {
  std::string repository;   // "ORG/NAME"
  std::string quant, file;  // at most one is set

  bool is_gguf() const { return !quant.empty() || !file.empty(); }
  // The repository's folder in the cache: "models--ORG--NAME".
  std::string cache_folder() const;
};
std::optional<HubModel> parse_hub_model(const std::string& text);

// Picks the GGUF file from the relative paths `files`, with all its parts in order. Empty: none matches.
std::vector<std::string> choose_gguf(const std::vector<std::string>& files, const HubModel& model);

struct LocatedModel {
  std::string dir;  // as given if nothing was found
  // The hub name, also for a snapshot in a cache; else the folder's last part, or the GGUF file's without its ending.
  std::string name;
};
// `text`: a folder or a GGUF file, which come first, or a HubModel, whose revision main is looked up in `hub_cache`.
LocatedModel locate_model(const std::string& text, const std::string& hub_cache);

// Where programs keep models; empty: nowhere.
struct ModelCaches {
  std::string hub;
  std::string ollama;                  // manifests/HOST/…/NAME/TAG, blobs/sha256-…
  std::vector<std::string> lm_studio;  // ORG/REPOSITORY/FILE.gguf
};
// As the environment says.
ModelCaches model_caches();

// As locate_model(), and names of GGUF files in all caches: "ORG/REPOSITORY", "REPOSITORY" or "FILE", with ":Q4_K_M"
// behind a repository, and Ollama's "NAME:TAG". Letters' cases are alike. kInvalidArgument lists what an ambiguous name
// may mean.
Result<LocatedModel> find_model(const std::string& text, const ModelCaches& caches);

// What --draft names: one drafter, or two with a comma between. kInvalidArgument for more, and for none beside another.
Result<std::vector<std::string>> drafter_names(const std::string& draft);

// The known drafter of `target`, in the cache. kNotFound: none is known, or it is not in the cache; the message says
// how to get it.
Result<LocatedModel> locate_known_drafter(const LocatedModel& target, const std::string& hub_cache);

}  // namespace volley::apps
