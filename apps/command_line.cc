#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "apps/options.h"
#include "serve/json_text.h"

namespace volley::apps {
namespace {

constexpr const char* kExitCodes =
    "Exit status: 0 all went well, for serve also after a signal; 1 some requests failed; 2 an option, an input or an\n"
    "output is wrong; 3 the models could not be loaded; 130 ended by Ctrl-C, 143 by SIGTERM. The first signal lets "
    "the\n"
    "program end in order (serve: running requests too), a second one ends it at once.";

// Unlike CLI::Range it refuses what is not a finite number.
CLI::Validator between(double low, double high, const std::string& description) {
  return CLI::Validator(
      [low, high, description](std::string& text) -> std::string {
        double value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = end == text.data() + text.size() && !std::isnan(value);
        if (number && failure == std::errc() && value >= low && value <= high) return "";
        const bool large =
            failure == std::errc::result_out_of_range ? text.find("e-") == std::string::npos : value > high;
        return number && large ? text + " is too large: it must be " + description : text + " is not " + description;
      },
      "");
}

// Of 64 bits, which a double does not hold.
const CLI::Validator& seed() {
  static const CLI::Validator validator(
      [](std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = !text.empty() && end == text.data() + text.size();
        if (number && failure == std::errc()) return "";
        const std::string what = "a whole number from 0 to 2^64 - 1";
        return number ? text + " is too large: it must be " + what : text + " is not " + what;
      },
      "");
  return validator;
}

// CLI11 takes an empty text for an option that was not given.
const CLI::Validator& not_empty() {
  static const CLI::Validator validator([](std::string& text) { return text.empty() ? "it must not be empty" : ""; },
                                        "");
  return validator;
}

// What the model is to read.
const CLI::Validator& some_text() {
  static const CLI::Validator validator(
      [](std::string& text) {
        if (text.empty()) return "it must not be empty";
        return serve::find_invalid_utf8(text) ? "it is not valid UTF-8: check the terminal's encoding" : "";
      },
      "");
  return validator;
}

const CLI::Validator& positive() {
  static const CLI::Validator validator =
      between(1, std::numeric_limits<int32_t>::max(), "a whole number from 1 to 2147483647");
  return validator;
}

const CLI::Validator& not_negative() {
  static const CLI::Validator validator =
      between(0, std::numeric_limits<int32_t>::max(), "a whole number from 0 to 2147483647");
  return validator;
}

ComputeType compute_type(const std::string& name) {
  if (name == "bfloat16") return ComputeType::kBFloat16;
  return name == "float32" ? ComputeType::kFloat32 : ComputeType::kAuto;
}

Speculation speculation_of(const std::string& name) {
  return name == "off" ? Speculation::kOff : Speculation::kDFlash;
}

void add_model_options(CLI::App* app, std::optional<std::string>* model, std::optional<std::string>* draft) {
  app->add_option("--model", *model, "Hugging Face folder of the target [the pocket model that comes with volley]")
      ->check(not_empty())
      ->type_name("DIR");
  app->add_option("--draft", *draft, "folder of its DFlash drafter, or none [pocket's, or none beside --model]")
      ->check(not_empty())
      ->type_name("DIR|none");
}

// `slots`: the default of --max-num-seqs.
void add_engine_options(CLI::App* app, EngineFlags* flags, const std::string& slots) {
  EngineOptions& base = flags->base;
  add_model_options(app, &flags->model, &flags->draft);
  app->add_option("--device", base.device, "what computes: auto or cpu")->check(CLI::IsMember({"auto", "cpu"}));
  const auto types = CLI::IsMember({"auto", "bfloat16", "float32"});
  app->add_option_function<std::string>(
         "--dtype", [&base](const std::string& name) { base.dtype = compute_type(name); },
         "arithmetic: auto, bfloat16 or float32")
      ->check(types);
  app->add_option_function<std::string>(
         "--kv-cache-dtype", [&base](const std::string& name) { base.kv_cache_dtype = compute_type(name); },
         "of cached keys and values: auto (as --dtype), bfloat16 or float32")
      ->check(types);
  app->add_option("--threads", base.threads, "threads that compute [the cores this process may use]")
      ->check(between(1, 4096, "a number of threads from 1 to 4096"));
  app->add_option("--draft-window", base.draft_window, "last context positions that the drafter sees [all]")
      ->check(positive());
  app->add_option("--page-size", base.page_size, "KV positions a page, a multiple of 16 [16]")->check(positive());
  app->add_option("--kv-pages", base.kv_pages, "pages of KV memory [as many as fit]")
      ->check(between(1, 1e12, "a whole number from 1 to 10^12"));
  app->add_option("--prefill-chunk", base.prefill_chunk, "most prompt tokens of one request a step [512]")
      ->check(positive());
  app->add_flag_callback(
      "--no-prefix-cache", [&base] { base.prefix_cache = false; }, "do not share the KV of equal prompt beginnings");
  app->add_option("--max-num-seqs", base.max_num_seqs, "requests that run at once [" + slots + "]")->check(positive());
  app->add_option("--max-num-batched-tokens", base.max_num_batched_tokens,
                  "rows of one target pass [every slot's block and a prefill chunk]")
      ->check(positive());
  app->add_option("--max-model-len", base.max_model_len, "prompt and output tokens of a request [the model's]")
      ->check(positive());
  app->add_option("--dummy-weights", base.dummy_weights,
                  "random weights of this seed: only config.json is read; the texts mean nothing")
      ->check(seed())
      ->type_name("SEED");
  app->add_option_function<std::string>(
         "--simulate-acceptance",
         [&base](const std::string& text) {
           auto parsed = parse_simulated_acceptance(text);
           if (!parsed.ok()) throw CLI::ValidationError("--simulate-acceptance", parsed.error().message);
           base.simulate_acceptance = *parsed;
         },
         "position i of a block is accepted with P^i; the texts mean nothing")
      ->type_name("geometric:P");
}

// One engine's mode; bench has lists instead.
void add_speculation_options(CLI::App* app, EngineFlags* flags) {
  app->add_option_function<std::string>(
         "--spec", [flags](const std::string& name) { flags->speculation = speculation_of(name); },
         "how tokens are drafted: dflash or off [dflash where there is a drafter]")
      ->check(CLI::IsMember({"dflash", "off"}));
  app->add_option("--block-size", flags->base.block_size, "tokens of a block, from 2 up [the drafter's own]")
      ->check(between(2, 1024, "a block size from 2 to 1024"));
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
      ->check(between(1e-6, 100, "a penalty above 0 and at most 100"))
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

void add_generate(CLI::App* root, GenerateCommand* command) {
  CLI::App* app = root->add_subcommand("generate", "answer prompts of the command line or of a file");
  add_engine_options(app, &command->engine, "as --concurrency");
  add_speculation_options(app, &command->engine);
  add_sampling_options(app, &command->settings, "Sampling (defaults: the model's generation_config.json)");
  auto* source = app->add_option_group("Prompt", "exactly one of");
  source->add_option("--prompt", command->prompt, "text that is continued as it is")
      ->check(some_text())
      ->type_name("TEXT");
  source->add_option("--chat", command->chat, "a user's message, put into the model's chat template")
      ->check(some_text())
      ->type_name("TEXT");
  source
      ->add_option("--input", command->input,
                   "one JSON object a line, - for stdin: prompt_ids, prompt or messages, and optionally id and any "
                   "sampling field")
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  source->require_option(1);
  app->add_option("--output", command->output, "one JSON object for each line of --input, in its order [stdout]")
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  app->add_flag("--json", command->json, "end with one line of JSON statistics on stdout");
  app->add_option("--max-tokens", command->settings.max_tokens, "most tokens of an answer [as many as fit]")
      ->check(positive());
  app->add_option("--min-tokens", command->settings.min_tokens, "no end before so many tokens")->check(not_negative());
  app->add_option_function<std::vector<std::string>>(
         "--stop", [command](const std::vector<std::string>& stops) { command->settings.stop = stops; },
         "the text ends before this; may be given several times")
      ->check(some_text())
      ->type_name("TEXT")
      ->type_size(1)
      ->expected(1)
      ->take_all();
  app->add_option("--concurrency", command->concurrency, "requests of --input that are kept open at once [1]")
      ->check(between(1, 65536, "a number of requests from 1 to 65536"));
}

void add_serve(CLI::App* root, ServeCommand* command) {
  CLI::App* app = root->add_subcommand("serve", "an OpenAI-compatible HTTP server");
  add_engine_options(app, &command->engine, "32");
  add_speculation_options(app, &command->engine);
  app->add_option("--host", command->host, "address to listen on [127.0.0.1]")->check(not_empty());
  app->add_option("--port", command->port, "port to listen on, 0 for any free one [8000]")
      ->check(between(0, 65535, "a port from 0 to 65535"));
  app->add_option("--served-model-name", command->served_model_names, "name in the API [that of the model's folder]")
      ->check(not_empty());
}

void add_bench(CLI::App* root, BenchCommand* command) {
  CLI::App* app = root->add_subcommand("bench", "throughput over concurrency, with and without speculation");
  add_engine_options(app, &command->engine, "the largest --concurrency");
  add_sampling_options(app, &command->settings, "Sampling (greedy unless --temperature is given)");
  app->add_option("--concurrency", command->concurrency, "requests open at once, a list [1,8]")
      ->delimiter(',')
      ->check(between(1, 65536, "a number of requests from 1 to 65536"));
  app->add_option_function<std::vector<std::string>>(
         "--spec",
         [command](const std::vector<std::string>& names) {
           for (const std::string& name : names) command->speculation.push_back(speculation_of(name));
         },
         "off, dflash or both as a list [off,dflash where there is a drafter]")
      ->delimiter(',')
      ->check(CLI::IsMember({"dflash", "off"}));
  app->add_option("--block-size", command->block_sizes, "block sizes to measure, a list [the drafter's own]")
      ->delimiter(',')
      ->check(between(2, 1024, "a block size from 2 to 1024"));
  app->add_option("--prompt-tokens", command->prompt_tokens, "length of a random prompt [128]")->check(positive());
  app->add_option("--output-tokens", command->output_tokens, "most tokens of an answer [128]")->check(positive());
  app->add_option("--requests", command->requests, "requests a measurement [the concurrency, at least 4]")
      ->check(positive());
  app->add_option("--prompt-seed", command->prompt_seed, "of the random prompts [1]")->check(seed());
  app->add_option("--input", command->input, "prompts as for generate, instead of random ones")
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  app->add_option("--output", command->output, "write the measurements as JSON")
      ->check(not_empty())
      ->type_name("FILE.json");
  app->add_flag("--json", command->json, "end with the measurements as one line of JSON on stdout");
}

void add_inspect(CLI::App* root, InspectCommand* command) {
  CLI::App* app = root->add_subcommand("inspect", "what a model is, what memory it takes, and whether a drafter fits");
  add_model_options(app, &command->model, &command->draft);
  app->add_flag("--json", command->json, "one line of JSON instead of text");
}

// What no single option's check can see.
Status check_engine(const EngineFlags& flags) {
  if (flags.base.page_size % 16 != 0) {
    return invalid_argument("--page-size " + std::to_string(flags.base.page_size) +
                            " is not a multiple of 16: take 16, 32 or 64");
  }
  if (flags.speculation == Speculation::kOff && flags.base.block_size != 0) {
    return invalid_argument("--block-size needs a drafter: leave it out, or leave out --spec off");
  }
  return {};
}

Status check_generate(const GenerateCommand& command) {
  VOLLEY_RETURN_IF_ERROR(check_engine(command.engine));
  const auto [least, most] = std::pair(command.settings.min_tokens, command.settings.max_tokens);
  if (least && most && *least > *most) {
    return invalid_argument("--min-tokens " + std::to_string(*least) + " is above --max-tokens " +
                            std::to_string(*most) + ": lower the one or raise the other");
  }
  return {};
}

// CLI11's messages are sentences but for the end, and some have several lines.
std::string one_sentence(std::string message) {
  for (char& c : message) {
    if (c == '\n') c = ' ';
  }
  while (!message.empty() && (message.back() == ' ' || message.back() == '.')) message.pop_back();
  return message + "; see volley --help";
}

}  // namespace

Result<double> parse_simulated_acceptance(const std::string& text) {
  const std::string prefix = "geometric:";
  double p = -1;
  const char* end = text.data() + text.size();
  const bool named = text.compare(0, prefix.size(), prefix) == 0;
  const auto parsed = named ? std::from_chars(text.data() + prefix.size(), end, p) : std::from_chars_result{};
  if (!named || parsed.ec != std::errc() || parsed.ptr != end || !(p >= 0 && p <= 1)) {
    return invalid_argument(text + " is not geometric:P with P from 0 to 1");
  }
  return p;
}

Result<Command> parse_command_line(int argc, const char* const* argv) {
  CLI::App root("Volley: an LLM serving engine that decodes with DFlash speculation.", "volley");
  root.footer(kExitCodes);
  root.set_version_flag("--version", "volley " VOLLEY_VERSION);
  root.require_subcommand(1);
  root.fallthrough(false);
  GenerateCommand generate;
  ServeCommand serve;
  BenchCommand bench;
  InspectCommand inspect;
  DemoCommand demo;
  add_generate(&root, &generate);
  add_serve(&root, &serve);
  add_bench(&root, &bench);
  add_inspect(&root, &inspect);
  root.add_subcommand("demo", "three answers of the pocket models, with and without speculation")
      ->add_option("--threads", demo.threads, "threads that compute [the cores this process may use]")
      ->check(positive());
  for (CLI::App* app : root.get_subcommands({})) app->footer(kExitCodes);

  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    return Command(PrintAndExit{std::string(version.what()) + "\n"});
  } catch (const CLI::CallForHelp&) {
    const auto chosen = root.get_subcommands();
    return Command(PrintAndExit{chosen.empty() ? root.help() : chosen.front()->help("volley")});
  } catch (const CLI::ParseError& error) {
    return invalid_argument(one_sentence(error.what()));
  }
  if (root.got_subcommand("generate")) {
    VOLLEY_RETURN_IF_ERROR(check_generate(generate));
    return Command(std::move(generate));
  }
  if (root.got_subcommand("serve")) {
    VOLLEY_RETURN_IF_ERROR(check_engine(serve.engine));
    return Command(std::move(serve));
  }
  if (root.got_subcommand("bench")) {
    VOLLEY_RETURN_IF_ERROR(check_engine(bench.engine));
    return Command(std::move(bench));
  }
  if (root.got_subcommand("inspect")) return Command(std::move(inspect));
  return Command(demo);
}

}  // namespace volley::apps
