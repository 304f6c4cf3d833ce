// Public DFlash drafters by the models that they were trained for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::apps {

// The drafter's name on the Hugging Face hub. `target`: the model's name there, or its folder; its last part decides,
// in any case, and a quantised copy (-FP8) has the drafter of the original.
std::optional<std::string> known_drafter(std::string_view target);

}  // namespace volley::apps
