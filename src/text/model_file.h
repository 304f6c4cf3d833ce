// Small files of a model's folder, read whole.
#pragma once

#include <volley/result.h>

#include <optional>
#include <string>

namespace volley::text {

// The contents of the file, or nothing if it does not exist. kDataLoss: it exists and cannot be read, is no regular
// file, or is larger than any such file should be.
Result<std::optional<std::string>> read_model_file(const std::string& path);

}  // namespace volley::text
