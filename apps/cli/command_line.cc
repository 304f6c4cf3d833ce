#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "apps/cli/bench_options.h"
#include "apps/cli/command_line_errors.h"
#include "apps/cli/completion.h"
#include "apps/cli/help_text.h"
#include "apps/cli/known_drafters.h"
#include "apps/cli/option_aliases.h"
#include "apps/cli/option_groups.h"
#include "apps/cli/option_sources.h"
#include "apps/cli/options.h"
#include "apps/cli/serve_options.h"

namespace volley::apps {
namespace {

void add_generate(CLI::App* root, GenerateCommand* command) {
  CLI::App* app = root->add_subcommand("generate", "answer prompts of the command line or of a file");
  add_main_options(app, &command->engine, "as --concurrency");
  add_text_options(app, &command->engine);
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
  add_sampling_options(app, &command->settings, "Sampling (defaults: the model's generation_config.json)");
  auto* source = app->add_option_group("Prompt", "exactly one of");
  source->set_help_flag();  // the command has help flags
  source->set_help_all_flag();
  source->add_option("--prompt", command->prompt, "text that is continued as it is; - for stdin")
      ->check(some_text())
      ->type_name("TEXT");
  source->add_option("--chat", command->chat, "a user's message, put into the model's chat template; - for stdin")
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
  one_value_each(app->add_option_function<std::vector<std::string>>(
                     "--stop", [command](const std::vector<std::string>& stops) { command->settings.stop = stops; },
                     "the text ends before this; may be given several times"))
      ->check(some_text())
      ->type_name("TEXT");
  app->add_option("--concurrency", command->concurrency, "requests of --input that are kept open at once [1]")
      ->check(between(1, 65536, "a number of requests from 1 to 65536"));
}

void add_chat(CLI::App* app, ChatCommand* command) {
  {
    const GroupOfHelp group(app, "Chat");
    app->add_option("--url", command->url,
                    "talk to this OpenAI-compatible server; --model is then a name that it serves")
        ->check(not_empty())
        ->type_name("URL");
    app->add_option("--api-key", command->api_key,
                    "key for --url; other users of this machine can see it in the list of processes")
        ->check(not_empty())
        ->type_name("KEY");
    app->add_option("--system", command->system, "the system message")->check(some_text())->type_name("TEXT");
    const auto on_off = [app](const char* name, std::optional<bool>* value, const char* help) {
      app->add_option_function<std::string>(
             name, [value](const std::string& text) { *value = text == "on"; }, help)
          ->check(CLI::IsMember({"on", "off"}));
    };
    on_off("--thinking", &command->thinking,
           "whether the model thinks first, where its chat template knows enable_thinking");
    on_off("--show-reasoning", &command->show_reasoning,
           "what it thinks, dim [on where the answer goes to a terminal]");
    app->add_option("--max-tokens", command->settings.max_tokens, "most tokens of an answer [as many as fit]")
        ->check(positive());
    app->add_option("--history", command->history,
                    "file that keeps what was typed, or none [$XDG_STATE_HOME/volley/chat_history, else below "
                    "~/.local/state]")
        ->check(not_empty())
        ->type_name("FILE|none");
  }
  add_main_options(app, &command->engine, "1");
  add_text_options(app, &command->engine);
  add_sampling_options(app, &command->settings, "Sampling (defaults: the model's generation_config.json)");
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
}

void add_pull(CLI::App* root, PullCommand* command) {
  CLI::App* app = root->add_subcommand("pull", "fetch a model of the Hugging Face hub, and its known drafter");
  add_model_options(app, &command->model, &command->draft);
  app->get_option("--model")
      ->description("its name, or that of one GGUF file")
      ->type_name("ORG/NAME|ORG/NAME:QUANT|ORG/NAME/FILE.gguf");
  app->get_option("--draft")
      ->description("its DFlash drafter, or none [the one that is known for it]")
      ->type_name("ORG/NAME|auto|none");
}

void add_batch(CLI::App* root, BatchCommand* command) {
  CLI::App* app = root->add_subcommand("batch", "a file of requests in OpenAI's batch format; can be resumed");
  add_main_options(app, &command->engine, "as --concurrency");
  add_text_options(app, &command->engine);
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
  app->add_option("--input", command->input, "one request a line: custom_id, method, url, body")
      ->required()
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  app->add_option("--output", command->output, "one result a line; lines that it holds already are not run again")
      ->required()
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  values_as_written(app->add_option("--served-model-name", command->served_model_names,
                                    "name in the requests [that of the model's folder]"))
      ->check(not_empty());
  app->add_option("--concurrency", command->concurrency, "requests that are kept open at once [32]")
      ->check(between(1, 65536, "a number of requests from 1 to 65536"));
}

void add_inspect(CLI::App* root, InspectCommand* command) {
  CLI::App* app = root->add_subcommand("inspect", "what a model is, what memory it takes, and whether a drafter fits");
  add_model_options(app, &command->model, &command->draft);
  add_table_options(app, &command->base, OptionGroup::kModel, {"--tokenizer", "--dtype"});
  add_table_options(app, &command->base, OptionGroup::kEngine,
                    {"--tensor-parallel-size", "--enable-expert-parallel", "--data-parallel-size"});
  app->add_flag("--json", command->json, "one line of JSON instead of text");
}

// Takes serve's options, to look at a server's configuration.
void add_collect_env(CLI::App* root, CollectEnvCommand* command) {
  CLI::App* app = root->add_subcommand(
      "collect-env",
      "what a report of a problem should say: build, machine, models, options; takes those of serve, too");
  add_serve_options(app, &command->serve);
  app->add_flag("--json", command->json, "one line of JSON instead of text");
}

// Checks options of subcommands that run one engine for incoming requests.
Status check_one_engine(const EngineFlags& flags) {
  VOLLEY_RETURN_IF_ERROR(check_engine(flags));
  if (!flags.simulations.empty() && flags.simulations.front().of_requests.size() > 1) {
    return invalid_argument("--simulate-acceptance " + flags.simulations.front().text +
                            " says something else of each request, which only volley bench can do: give one entry");
  }
  return {};
}

Status check_tls(const serve::TlsOptions& tls) {
  const bool asks = tls.client_certificate != serve::TlsOptions::ClientCertificate::kNone;
  if (tls.certificate.empty()) {
    if (tls.key.empty() && tls.client_authorities.empty() && !asks) return {};
    return invalid_argument("HTTPS needs a certificate: give --ssl-certfile beside the other --ssl options");
  }
  if (asks && tls.client_authorities.empty()) {
    return invalid_argument("--ssl-cert-reqs needs to know whose certificates count: give --ssl-ca-certs");
  }
  if (!asks && !tls.client_authorities.empty()) {
    return invalid_argument("--ssl-ca-certs asks nobody for a certificate: add --ssl-cert-reqs required or optional");
  }
  return {};
}

Status check_generate(const GenerateCommand& command) {
  VOLLEY_RETURN_IF_ERROR(check_one_engine(command.engine));
  const auto [least, most] = std::pair(command.settings.min_tokens, command.settings.max_tokens);
  if (least && most && *least > *most) {
    return invalid_argument("--min-tokens " + std::to_string(*least) + " is above --max-tokens " +
                            std::to_string(*most) + ": lower the one or raise the other");
  }
  return {};
}

// An endpoint has no engine options. A variable is allowed, because it may be there for another program.
Status check_chat(const CLI::App& app, const ChatCommand& command, const std::vector<GivenOption>& given) {
  const auto chosen = [&given](const std::string& name) {
    return std::ranges::any_of(given, [&name](const GivenOption& option) {
      return option.name == name && option.source != variable_of(name);
    });
  };
  VOLLEY_RETURN_IF_ERROR(check_one_engine(command.engine));
  if (!command.url) {
    if (chosen("--api-key")) return invalid_argument("--api-key is for --url: give that, too, or leave it out");
    return {};
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    const bool engine = group == "Model" || group == "Speculation" || group == "Engine" || group == kInternals;
    if (!engine || !chosen(option->get_name()) || option->get_name() == "--model") continue;
    return invalid_argument(option->get_name() + " is for a model in this process: leave it out beside --url");
  }
  return {};
}

// "help serve" means "serve --help", and an empty command line means "--help".
std::vector<std::string> with_help_asked(std::vector<std::string> words) {
  if (!words.empty() && words.front() != "help") return words;
  while (!words.empty() && words.front() == "help") words.erase(words.begin());
  words.push_back("--help");
  return words;
}

// Holds the parsed values of all subcommands, of which one is used.
struct Commands {
  GenerateCommand generate;
  ChatCommand chat, run;
  PullCommand pull;
  ServeCommand serve;
  BatchCommand batch;
  BenchCommand bench;
  InspectCommand inspect;
  DemoCommand demo;
  CollectEnvCommand collect_env;
  std::string shell;   // for completion
  std::string config;  // for settings_beside()
};

class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Throws CLI11's exceptions.
  void parse(std::vector<std::string> words) {
    std::ranges::reverse(words);  // CLI11's order
    root.parse(words);
  }
  Result<Command> command(const std::vector<GivenOption>& given);

  CLI::App root{"Volley: an LLM serving engine that decodes with DFlash speculation.", "volley"};

 private:
  Commands commands_;
};

CommandLine::CommandLine() {
  root.formatter(std::make_shared<HelpFormatter>(help_width()));
  root.footer(kExitCodes);
  root.set_version_flag("--version", "volley " VOLLEY_VERSION);
  root.set_help_all_flag("--help-all", "the same, with the engine's internals");  // subcommands inherit it
  root.require_subcommand(1);
  root.fallthrough(false);
  add_generate(&root, &commands_.generate);
  add_chat(root.add_subcommand("chat", "a conversation in the terminal"), &commands_.chat);
  add_chat(root.add_subcommand("run", "chat, with the drafter that is known for the model"), &commands_.run);
  add_pull(&root, &commands_.pull);
  add_serve_options(root.add_subcommand("serve", "an OpenAI-compatible HTTP server"), &commands_.serve);
  add_batch(&root, &commands_.batch);
  add_bench(&root, &commands_.bench);
  add_inspect(&root, &commands_.inspect);
  root.add_subcommand("demo", "three answers of the pocket models, with and without speculation")
      ->add_option("--threads", commands_.demo.threads, "threads that compute [the cores this process may use]")
      ->check(positive());
  add_collect_env(&root, &commands_.collect_env);
  for (CLI::App* app : root.get_subcommands({})) {
    app->add_option("--config", commands_.config, "YAML: option names and their values, such as port: 8000")
        ->check(not_empty())
        ->type_name("FILE");
    app->footer(std::string(kOptionSources) + "\n" + kExitCodes);
  }
  root.add_subcommand("completion", "a script that completes this command line in bash, zsh or fish")
      ->add_option("shell", commands_.shell, "bash: source <(volley completion bash)")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  root.add_subcommand("help", "this list; help COMMAND: what a command takes");  // with_help_asked() handles it
}

// `given`: options of all sources.
Result<Command> CommandLine::command(const std::vector<GivenOption>& given) {
  if (root.got_subcommand("generate")) {
    VOLLEY_RETURN_IF_ERROR(check_generate(commands_.generate));
    return Command(std::move(commands_.generate));
  }
  if (const CLI::App* app = root.get_subcommand("chat"); root.got_subcommand("chat")) {
    VOLLEY_RETURN_IF_ERROR(check_chat(*app, commands_.chat, given));
    return Command(std::move(commands_.chat));
  }
  if (const CLI::App* app = root.get_subcommand("run"); root.got_subcommand("run")) {
    ChatCommand& run = commands_.run;
    VOLLEY_RETURN_IF_ERROR(check_chat(*app, run, given));
    if (run.engine.model && !run.engine.draft && !run.url && known_drafter(*run.engine.model)) {
      run.engine.draft = "auto";
    }
    return Command(std::move(run));
  }
  if (root.got_subcommand("pull")) return Command(std::move(commands_.pull));
  if (root.got_subcommand("serve")) {
    ServeCommand& serve = commands_.serve;
    VOLLEY_RETURN_IF_ERROR(check_one_engine(serve.engine));
    VOLLEY_RETURN_IF_ERROR(check_tls(serve.tls));
    if (!serve.tls.certificate.empty()) serve.server.tls = serve.tls;
    // A request for more choices than the queue holds would always be a 429.
    serve.server.max_choices = std::min(serve.server.max_choices, serve.engine.base.max_queue);
    return Command(std::move(serve));
  }
  if (root.got_subcommand("batch")) {
    VOLLEY_RETURN_IF_ERROR(check_one_engine(commands_.batch.engine));
    return Command(std::move(commands_.batch));
  }
  if (root.get_subcommand("bench")->got_subcommand("serving")) {
    return usage_error("options stand before serving, where they mean nothing: write volley bench serving first",
                       "volley bench");
  }
  if (root.got_subcommand("bench")) {
    VOLLEY_RETURN_IF_ERROR(check_bench(commands_.bench));
    return Command(std::move(commands_.bench));
  }
  if (root.got_subcommand("collect-env")) {
    commands_.collect_env.options = given;
    return Command(std::move(commands_.collect_env));
  }
  if (root.got_subcommand("completion")) {
    const Shell shell = commands_.shell == "bash"  ? Shell::kBash
                        : commands_.shell == "zsh" ? Shell::kZsh
                                                   : Shell::kFish;
    return Command(PrintAndExit{completion_script(root, shell)});
  }
  if (root.got_subcommand("inspect")) return Command(std::move(commands_.inspect));
  return Command(commands_.demo);
}

Command help_of(const CLI::App& root, CLI::AppFormatMode mode) {
  std::string name;
  const CLI::App& asked = innermost(root, &name);
  if (&asked == &root) return PrintAndExit{root.help()};
  return PrintAndExit{asked.help(name.substr(0, name.size() - asked.get_name().size() - 1), mode)};
}

}  // namespace

// The words are parsed twice: alone, to learn what they set, and with the additions of other sources.
Result<Command> parse_command_line(int argc, const char* const* argv, const Variables& variables,
                                   std::vector<std::string>* warnings) {
  std::vector<std::string> words = with_help_asked({argv + std::min(argc, 1), argv + argc});
  // The other words are another program's options.
  if (words.size() >= 2 && words[0] == "bench" && words[1] == "serving") {
    return Command(BenchServingCommand{{words.begin() + 2, words.end()}});
  }
  words = translate_aliases(std::move(words));
  CommandLine alone;
  VOLLEY_RETURN_IF_ERROR(check_command(alone.root, words));
  if (warnings != nullptr) *warnings = unknown_variables(alone.root, variables);
  try {
    alone.parse(words);
  } catch (const CLI::CallForVersion& version) {
    return Command(PrintAndExit{std::string(version.what()) + "\n"});
  } catch (const CLI::CallForHelp&) {
    if (auto error = swallowed_by_help(alone.root, words)) return *error;
    return help_of(alone.root, CLI::AppFormatMode::Normal);
  } catch (const CLI::CallForAllHelp&) {
    return help_of(alone.root, CLI::AppFormatMode::All);
  } catch (const CLI::RequiredError&) {  // another source may set it
  } catch (const CLI::ParseError& error) {
    return parse_error(alone.root, error.what());
  }
  std::vector<GivenOption> given;
  std::string name;
  CLI::App& app = innermost(alone.root, &name);
  for (const CLI::Option* option : options_of(app)) {
    if (option->count() == 0) continue;
    given.push_back({option->get_name(),
                     option->get_expected_max() == 0 ? std::vector<std::string>() : option->results(), "command line"});
  }
  VOLLEY_ASSIGN(const std::vector<OptionSetting> settings, settings_beside(app, name, variables));
  for (const OptionSetting& setting : settings) {
    given.push_back({setting.option, setting.values, setting.source});
  }
  for (const auto& [variable, value] : variables) {
    if (is_read_elsewhere(variable)) given.push_back({variable, {value}, "environment"});
  }
  const std::vector<std::string> more = words_of(settings);
  words.insert(words.end(), more.begin(), more.end());
  CommandLine all;
  try {
    all.parse(words);
  } catch (const CLI::ParseError& error) {
    return parse_error(all.root, error.what());
  }
  return all.command(given);
}

}  // namespace volley::apps
