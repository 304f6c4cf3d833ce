// A chat template that does not come from the model's folder.
#pragma once

#include <memory>
#include <string>

#include "text/text.h"

namespace volley::text {

// The template in `file`, with the special tokens of the model in `dir`. kInvalidArgument: the file is not there, does
// not compile, or does not end.
Result<std::shared_ptr<const ChatTemplate>> load_template_file(const std::string& dir, const std::string& file);

}  // namespace volley::text
