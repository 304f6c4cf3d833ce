// Public DFlash drafters, by the models that they were trained for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace volley::apps {

// The drafter's name on the Hugging Face hub. `target`: a hub name or a folder, compared by its last part, in any case;
// a quantised copy (-FP8) has the original's drafter.
std::optional<std::string> known_drafter(std::string_view target);

}  // namespace volley::apps
