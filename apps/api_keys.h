// The keys that clients of `volley serve` must send one of.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>
#include <vector>

namespace volley::apps {

// Collects the keys of all sources. `file`: one key a line; empty lines and lines that begin with # do not count.
// `listed`: keys separated by commas, as VOLLEY_API_KEYS holds them. `given`: those of --api-key. Empty if no source
// was given. kNotFound: the file cannot be read, or is no regular file of at most 1 MiB. kInvalidArgument: a source
// without a key, which would leave the server open to all, or a key with a character that no header can hold. No
// message quotes a key.
Result<std::vector<std::string>> read_api_keys(const std::optional<std::string>& file,
                                               const std::optional<std::string>& listed,
                                               const std::vector<std::string>& given = {});

}  // namespace volley::apps
