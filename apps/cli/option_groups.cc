#include "apps/cli/option_groups.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/cli/help_text.h"
#include "apps/cli/option_aliases.h"
#include "families/generation.h"
#include "serve/http/access.h"
#include "serve/json/json_text.h"

namespace volley::apps {

namespace {

// CLI11 takes "010" and "-01" for octal numbers.
bool is_octal(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
}

std::string octal(const std::string& text, const std::string& description) {
  return text + " begins with a 0: it must be " + description;
}

}  // namespace

CLI::Validator between(double low, double high, const std::string& description) {
  return CLI::Validator(
      [low, high, description](std::string& text) -> std::string {
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = end == text.data() + text.size() && !std::isnan(value);
        if (number && is_octal(text)) return octal(text, description);
        if (number && failure == std::errc() && value >= low && value <= high) return "";
        const bool large =
            failure == std::errc::result_out_of_range ? text.find("e-") == std::string::npos : value > high;
        return number && large ? text + " is too large: it must be " + description : text + " is not " + description;
      },
      "");
}

CLI::Validator seed() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = !text.empty() && end == text.data() + text.size();
        const std::string what = "a whole number from 0 to 2^64 - 1";
        if (number && is_octal(text)) return octal(text, what);
        if (number && failure == std::errc()) return "";
        return number ? text + " is too large: it must be " + what : text + " is not " + what;
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator([](std::string& text) { return text.empty() ? "it must not be empty" : ""; }, "");
}

CLI::Validator web_origin() {
  return CLI::Validator([](std::string& text) { return serve::origin_problem(text); }, "");
}

CLI::Validator host_name() {
  return CLI::Validator([](std::string& text) { return serve::host_problem(text); }, "");
}

CLI::Validator some_text() {
  return CLI::Validator(
      [](std::string& text) {
        if (text.empty()) return "it must not be empty";
        return serve::find_invalid_utf8(text) ? "it is not valid UTF-8: check the terminal's encoding" : "";
      },
      "");
}

CLI::Validator positive() {
  return between(1, std::numeric_limits<int32_t>::max(), "a whole number from 1 to 2147483647");
}

CLI::Validator not_negative() {
  return between(0, std::numeric_limits<int32_t>::max(), "a whole number from 0 to 2147483647");
}

CLI::Option* one_value_each(CLI::Option* option) {
  return option->type_size(1)->expected(1)->take_all()->allow_extra_args(false);
}

CLI::Option* values_as_written(CLI::Option* option) {
  constexpr int kMost = 1000;  // any number but CLI11's for no limit
  return option->expected(1, kMost)->allow_extra_args(false);
}

namespace {

CLI::Validator json_object() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto json = nlohmann::json::parse(text, nullptr, false);
        return json.is_object() ? "" : R"(it must be a JSON object, such as {"enable_thinking": false})";
      },
      "");
}

CLI::Validator generation_overrides() {
  return CLI::Validator(
      [](std::string& text) {
        const Status checked = families::check_sampling_overrides(text);
        return checked.ok() ? "" : checked.error().message;
      },
      "");
}

// The engine knows whether the build and the machine have it.
CLI::Validator device_name() {
  return CLI::Validator(
      [](std::string& text) {
        const bool named = text == "auto" || text == "cpu" || text == "cuda";
        const bool numbered = text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
                              text.find_first_not_of("0123456789", 5) == std::string::npos;
        return named || numbered ? std::string() : text + " is not auto, cpu, cuda or cuda:N";
      },
      "");
}

// Refuses other programs' values by name.
CLI::Validator kv_cache_is_built() {
  return CLI::Validator(
      [](const std::string& name) {
        return name == "fp8_e5m2" ? "fp8_e5m2 is not built: use fp8, which is e4m3" : std::string();
      },
      "");
}

}  // namespace

GroupOfHelp::GroupOfHelp(CLI::App* app, std::string name)
    : app_(app), name_(std::move(name)), first_(app->get_options().size()) {}

GroupOfHelp::~GroupOfHelp() {
  const auto options = app_->get_options();
  for (size_t i = first_; i < options.size(); ++i) {
    if (!options[i]->get_group().empty()) options[i]->group(name_);  // an option without a group is hidden
  }
}

VerifyPolicy verify_option(const std::string& text) {
  auto parsed = parse_verify(text);
  if (!parsed.ok()) throw CLI::ValidationError("--verify", parsed.error().message);
  return *parsed;
}

Speculation speculation_of(const std::string& name) {
  return name == "off" ? Speculation::kOff : Speculation::kOn;
}

void add_model_options(CLI::App* app, std::optional<std::string>* model, std::optional<std::string>* draft) {
  app->add_option(
         "--model,MODEL", *model,
         "the target: a Hugging Face folder, a GGUF file, or a name of the Hugging Face hub, ORG/NAME or, of a GGUF "
         "file, ORG/NAME:Q4_K_M [the pocket model that comes with volley]")
      ->check(not_empty())
      ->type_name("DIR|FILE.gguf|ORG/NAME");
  app->add_option(
         "--draft", *draft,
         "its drafter, likewise; auto: the known one; mtp: its MTP head; two: each step takes one [pocket's, or "
         "none beside --model]")
      ->check(not_empty())
      ->join(',')
      ->type_name("DIR|ORG/NAME|auto|none");
}

namespace {

template <typename T, typename Words>
std::vector<T> values_of(const Words& words) {
  std::vector<T> values;
  for (const auto& word : words) {
    if constexpr (std::is_same_v<T, std::string>) values.emplace_back(word.text);
    if constexpr (!std::is_same_v<T, std::string>) values.push_back(word.value);
  }
  return values;
}

// Allows the words of the table.
template <typename T>
CLI::Option* add_words(CLI::App* app, T* value, const EngineOption<T>& row) {
  const auto set = [value, words = row.words](const std::string& text) {
    *value = T(std::ranges::find(words, text, &std::ranges::range_value_t<decltype(words)>::text)->value);
  };
  CLI::Option* option = app->add_option_function<std::string>(row.name, set, row.text);
  if constexpr (std::is_same_v<T, KvCacheType>) option->check(kv_cache_is_built());
  return option->check(CLI::IsMember(values_of<std::string>(row.words)));
}

template <typename T>
CLI::Option* add_number(CLI::App* app, T* value, const EngineOption<T>& row) {
  const NumberRange& range = row.range;
  const auto set = [value, unit = range.unit](const T& given) { *value = given * static_cast<T>(unit); };
  CLI::Option* option = range.unit == 1 ? app->add_option(row.name, *value, row.text)
                                        : app->add_option_function<T>(row.name, set, row.text);
  option->check(between(range.least, range.most, range.phrase));
  if (!row.words.empty()) option->check(CLI::IsMember(values_of<T>(row.words)));
  return option;
}

template <typename T>
CLI::Option* add_row(CLI::App* app, T* value, const EngineOption<T>& row) {
  if constexpr (std::is_same_v<T, VerifyPolicy>) {
    return app->add_option_function<std::string>(
        row.name, [value](const std::string& text) { *value = verify_option(text); }, row.text);
  } else if constexpr (std::is_same_v<T, std::optional<uint64_t>>) {
    return app->add_option(row.name, *value, row.text)->check(seed());
  } else if constexpr (std::is_enum_v<T>) {
    return add_words(app, value, row);
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!row.words.empty()) return add_words(app, value, row);
    return app->add_option(row.name, *value, row.text)
        ->check(std::string_view(row.field_name) == "device" ? device_name() : not_empty());
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!row.words.empty()) return add_words(app, value, row);
    if (!std::string_view(row.name).starts_with("--no-")) return app->add_flag(row.name, *value, row.text);
    return app->add_flag_callback(
        row.name, [value] { *value = false; }, row.text);
  } else {
    return add_number(app, value, row);
  }
}

}  // namespace

void add_table_options(CLI::App* app, EngineOptions* options, OptionGroup group,
                       const std::vector<std::string_view>& names) {
  for_each_option([&](const auto& row) {
    if (row.group != group || (!names.empty() && std::ranges::count(names, row.name) == 0)) return;
    CLI::Option* option = add_row(app, &(options->*row.field), row);
    if (*row.value != '\0') option->type_name(row.value);
  });
}

void add_main_options(CLI::App* app, EngineFlags* flags, const std::string& slots) {
  const GroupOfHelp group(app, "Model");
  add_model_options(app, &flags->model, &flags->draft);
  app->add_flag("--offline", flags->offline, "fetch no model that is not in the cache");
  add_table_options(app, &flags->base, OptionGroup::kModel);
  if (!slots.empty()) app->get_option("--max-num-seqs")->description("requests that run at once [" + slots + "]");
}

void add_text_options(CLI::App* app, EngineFlags* flags) {
  TextFlags& text = flags->text;
  const GroupOfHelp group(app, "Model");
  app->add_option("--chat-template", text.chat_template, "a Jinja template instead of the model's own")
      ->check(not_empty())
      ->type_name("FILE");
  app->add_option("--default-chat-template-kwargs", text.template_kwargs,
                  "variables of the template for every chat; those of a request count before them")
      ->check(json_object())
      ->type_name("JSON");
  app->add_option_function<std::string>(
         "--generation-config",
         [&text](const std::string& source) { text.generation_config = source == "vllm" ? "none" : source; },
         "defaults of sampling: auto (the model's generation_config.json), none (temperature 1, all tokens), or a "
         "folder that has another such file [auto]")
      ->check(not_empty())
      ->type_name("auto|none|DIR");
  app->add_option("--override-generation-config", text.sampling_overrides,
                  "fields that count before it, such as {\"temperature\": 0.5}")
      ->check(generation_overrides())
      ->type_name("JSON");
}

namespace {

// split_address() has made two options of an address. This one exists for the help, and to explain wrong values.
void add_dist_init_addr(CLI::App* app) {
  app->add_option_function<std::string>(
         std::string(kDistInitAddr), [](const std::string&) {}, "--master-addr and --master-port as SGLang writes them")
      ->type_name("HOST:PORT")
      ->check(CLI::Validator(
          [](std::string& text) {
            return split_address(text) ? "" : text + " is not an address and a port, as in gpu-1:29501";
          },
          ""));
}

}  // namespace

void add_engine_options(CLI::App* app, EngineFlags* flags) {
  {
    const GroupOfHelp group(app, "Engine");
    add_table_options(app, &flags->base, OptionGroup::kEngine);
  }
  const GroupOfHelp group(app, kInternals);
  add_table_options(app, &flags->base, OptionGroup::kInternals);
  add_dist_init_addr(app);
  app->add_flag_callback(
      "--exact", [] {},
      "tokens do not depend on what else runs, on any device: the only mode there is, and the default");
  app->add_option("--simulate-confidence-odds", flags->confidence_odds,
                  "of simulated acceptance: the drafter says P with its odds multiplied by this [1]")
      ->check(between(1e-6, 1e6, "from 0.000001 to 1000000"))
      ->type_name("X");
}

void add_speculation_options(CLI::App* app, EngineFlags* flags) {
  {
    const GroupOfHelp group(app, "Speculation");
    app->add_option_function<std::string>(
           "--spec", [flags](const std::string& name) { flags->speculation = speculation_of(name); },
           "how tokens are drafted: dflash or off [dflash where there is a drafter]")
        ->check(CLI::IsMember(values_of<std::string>(std::span(kSpeculations))));
    add_table_options(app, &flags->base, OptionGroup::kSpeculation);
  }
  const GroupOfHelp internals(app, kInternals);
  app->add_option_function<std::string>(
         "--simulate-acceptance",
         [flags](const std::string& text) {
           auto parsed = parse_simulation(text);
           if (!parsed.ok()) throw CLI::ValidationError("--simulate-acceptance", parsed.error().message);
           flags->simulations = {std::move(*parsed)};
         },
         "position i of a block is accepted with P^i, another P from a decoding step of the request on; of two "
         "drafters P/P; the texts mean nothing")
      ->type_name("geometric:P[+STEP:P...]");
}

Status check_engine(const EngineFlags& flags) {
  if (flags.base.page_size % 16 != 0) {
    return invalid_argument("--page-size " + std::to_string(flags.base.page_size) +
                            " is not a multiple of 16: take 16, 32 or 64");
  }
  if (flags.speculation == Speculation::kOff && flags.base.block_size != 0) {
    return invalid_argument("--block-size needs a drafter: leave it out, or leave out --spec off");
  }
  if (flags.speculation == Speculation::kOff && flags.base.verify.kind != VerifyPolicy::Kind::kAuto) {
    return invalid_argument("--verify needs a drafter: leave it out, or leave out --spec off");
  }
  if (flags.confidence_odds != EngineFlags{}.confidence_odds && flags.simulations.empty()) {
    return invalid_argument("--simulate-confidence-odds is part of --simulate-acceptance: add that, or leave it out");
  }
  return {};
}

void add_sampling_options(CLI::App* app, RequestSettings* settings, const std::string& group) {
  app->add_option("--temperature", settings->temperature, "0 takes the likeliest token")
      ->check(between(0, 100, "a temperature from 0 to 100"))
      ->group(group);
  app->add_option("--top-p", settings->top_p, "likeliest tokens that reach this probability")
      ->check(between(1e-30, 1, "above 0 and at most 1"))
      ->group(group);
  app->add_option("--top-k", settings->top_k, "the k likeliest tokens; 0 or -1: all")
      ->check(between(-1, std::numeric_limits<int32_t>::max(), "a whole number from -1 to 2147483647"))
      ->group(group);
  app->add_option("--min-p", settings->min_p, "tokens at least this likely beside the likeliest")
      ->check(between(0, 1, "from 0 to 1"))
      ->group(group);
  app->add_option("--repetition-penalty", settings->repetition_penalty, "for tokens of prompt and output; 1: none")
      ->check(between(0.01, 100, "a penalty from 0.01 to 100"))
      ->group(group);
  app->add_option("--presence-penalty", settings->presence_penalty, "once for a token of the output")
      ->check(between(-2, 2, "from -2 to 2"))
      ->group(group);
  app->add_option("--frequency-penalty", settings->frequency_penalty, "for each time a token is in the output")
      ->check(between(-2, 2, "from -2 to 2"))
      ->group(group);
  app->add_option("--seed", settings->seed, "the same seed gives the same tokens [drawn for each request]")
      ->check(seed())
      ->group(group);
  app->add_flag_callback(
         "--ignore-eos", [settings] { settings->ignore_eos = true; }, "go on after the end-of-sequence token")
      ->group(group);
}

}  // namespace volley::apps
