// An operator's replacements for a model's text settings: chat template, its variables, sampling defaults; and
// simulated acceptance for requests without any.
#pragma once

#include <volley/engine.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/cli/options.h"
#include "text/text.h"

namespace volley::apps {

// Read before the engine is loaded, so that a mistake shows at once.
struct TextDefaults {
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model's own
  std::string template_kwargs;                              // a JSON object; may be empty
  std::optional<SamplingParams> sampling;                   // nothing: the model's own
  std::optional<SimulatedAcceptance> simulate_acceptance;   // nothing: acceptance is real

  bool any() const { return chat_template || !template_kwargs.empty() || sampling || simulate_acceptance; }
};

// kInvalidArgument names the option whose file or value is wrong. `model_dir`: the target's.
Result<TextDefaults> read_text_defaults(const TextFlags& flags, const std::string& model_dir);

// Sampling defaults of conversations: those of API requests, but milder if neither the model's makers nor the operator
// name any. Small models answer nonsense at temperature 1 over all tokens. read_text_defaults() reports wrong files.
AnswerDefaults chat_defaults(const TextFlags& flags, const std::string& model_dir);

// Wraps `engine` so that its requests get these defaults.
std::unique_ptr<Engine> with_text_defaults(std::unique_ptr<Engine> engine, TextDefaults defaults);

// The members of `defaults`, then those of `given`, both JSON objects or empty. Readers take the last of equal names.
std::string join_objects(std::string_view defaults, std::string_view given);

}  // namespace volley::apps
