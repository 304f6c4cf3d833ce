// Where the models that come with volley lie: beside an installed program, else in the source tree it was built from.
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

}  // namespace volley::apps
