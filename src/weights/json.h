// JSON of files that may be damaged.
#pragma once

#include <volley/result.h>

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace volley::weights {

// Parses `text`, which must be one JSON object. kDataLoss: not UTF-8, not JSON, not an object, nested deeper than 64,
// or an object with the same key twice. `what` begins the message, e.g. the file's path.
Result<nlohmann::json> parse_json_object(std::span<const std::byte> text, const std::string& what);

}  // namespace volley::weights
