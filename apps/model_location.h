// Where models lie: those that come with volley beside an installed program, else in the source tree it was built from;
// those with a name on the Hugging Face hub in the local cache of its tools. Nothing is downloaded.
#pragma once

#include <volley/result.h>

#include <string>

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

struct LocatedModel {
  std::string dir;   // as given, where nothing was found
  std::string name;  // the hub's, or the last part of the folder; of a snapshot in a cache the hub's, too
};
// `text`: a folder, which comes first, or a name of the hub, whose revision main is looked up in `hub_cache`.
LocatedModel locate_model(const std::string& text, const std::string& hub_cache);

// The drafter that is known for `target`, in the cache. kNotFound: none is known, or it is not there; the message says
// how to get it.
Result<LocatedModel> locate_known_drafter(const LocatedModel& target, const std::string& hub_cache);

}  // namespace volley::apps
