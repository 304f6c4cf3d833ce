// What an operator puts in place of a model's own text settings: chat template, its variables, defaults of sampling;
// and of requests that bring none, simulated acceptance.
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
  std::string template_kwargs;                              // a JSON object, or empty
  std::optional<SamplingParams> sampling;                   // nothing: the model's own
  std::optional<SimulatedAcceptance> simulate_acceptance;   // nothing: acceptance is real

  bool any() const { return chat_template || !template_kwargs.empty() || sampling || simulate_acceptance; }
};

// kInvalidArgument names the option whose file or value is wrong. `model_dir`: of the target.
Result<TextDefaults> read_text_defaults(const TextFlags& flags, const std::string& model_dir);

// How conversations are sampled that say nothing of it: as requests of the API are, but milder where neither the
// model's makers nor the operator name any sampling. Small models answer nonsense at temperature 1 over all tokens.
// Where the files are wrong, read_text_defaults() says so.
AnswerDefaults chat_defaults(const TextFlags& flags, const std::string& model_dir);

// `engine` with these defaults; else its answers are the engine's own.
std::unique_ptr<Engine> with_text_defaults(std::unique_ptr<Engine> engine, TextDefaults defaults);

// The members of `defaults` and then those of `given`, two JSON objects or empty: of equal names readers take the last.
std::string join_objects(std::string_view defaults, std::string_view given);

}  // namespace volley::apps
