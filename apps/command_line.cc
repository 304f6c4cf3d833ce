#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "apps/bench_options.h"
#include "apps/help_text.h"
#include "apps/option_aliases.h"
#include "apps/option_groups.h"
#include "apps/options.h"

namespace volley::apps {
namespace {

void add_generate(CLI::App* root, GenerateCommand* command) {
  CLI::App* app = root->add_subcommand("generate", "answer prompts of the command line or of a file");
  add_main_options(app, &command->engine, "as --concurrency");
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
  add_sampling_options(app, &command->settings, "Sampling (defaults: the model's generation_config.json)");
  auto* source = app->add_option_group("Prompt", "exactly one of");
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

void add_chat(CLI::App* root, ChatCommand* command) {
  CLI::App* app = root->add_subcommand("chat", "a conversation in the terminal");
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
  add_sampling_options(app, &command->settings, "Sampling (defaults: the model's generation_config.json)");
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
}

void add_limits(CLI::App* app, ServeCommand* command) {
  const std::string group = "Limits";
  serve::ServerOptions& server = command->server;
  const auto count = [&](const char* name, auto& value, const char* help) {
    app->add_option(name, value, help)->check(positive())->group(group);
  };
  const auto seconds = [&](const char* name, std::chrono::milliseconds& value, const char* help, int least) {
    app->add_option_function<int>(
           name, [&value](const int& given) { value = std::chrono::seconds(given); }, help)
        ->check(between(least, 1e6, "a number of seconds from " + std::to_string(least) + " to 1000000"))
        ->type_name("SECONDS")
        ->group(group);
  };
  count("--max-queue", command->engine.base.max_queue, "requests that may wait; one more is a 429 [4096]");
  count("--max-n", server.max_n, "choices of one prompt [128]");
  count("--max-choices", server.max_choices, "prompts times choices of one request, at most --max-queue [1024]");
  count("--max-response-bytes", server.max_response_bytes,
        "of an answer; one that is sure to be larger is a 400 [67108864]");
  const auto size = [&](const char* name, size_t& value, const char* help) {
    app->add_option(name, value, help)->check(between(0, 1e12, "a number from 0 to 1000000000000"))->group(group);
  };
  size("--max-stored-responses", server.max_stored_responses,
       "answers of /v1/responses that are kept to go on from; 0: none [1000]");
  size("--max-stored-bytes", server.max_stored_bytes,
       "of them with their conversations; the oldest go first [67108864]");
  count("--max-files", command->files.max_files, "in --files-dir, and as many batches [10000]");
  count("--max-file-bytes", command->files.max_file_bytes, "of a file; more is a 413 [536870912]");
  count("--max-files-bytes", command->files.max_total_bytes,
        "of all files and results of batches together [17179869184]");
  count("--max-body-bytes", server.max_body_bytes, "of a request; more is a 413 [10485760]");
  count("--max-total-body-bytes", server.max_total_body_bytes,
        "of all bodies that are arriving, at least --max-body-bytes; more is a 503 [268435456]");
  count("--max-header-bytes", server.max_header_bytes, "of a request; more is a 431 [16384]");
  count("--max-connections", server.max_connections, "open at once; one more gets a 503 [1024]");
  count("--max-unsent-bytes", server.max_unsent_bytes,
        "that wait for the reader of a stream; more cancels it [1048576]");
  seconds("--request-timeout", server.request_timeout, "for an answer, then a 504; 0: no limit [0]", 0);
  seconds("--receive-timeout", server.receive_timeout, "for a request to arrive, then a 408 [30]", 1);
  seconds("--idle-timeout", server.idle_timeout, "between requests of a connection [75]", 1);
  app->add_option("--drain-timeout", command->drain_timeout_s,
                  "seconds that running requests get after a signal, then they are cancelled [30]")
      ->check(between(0, 1e6, "a number of seconds from 0 to 1000000"))
      ->type_name("SECONDS")
      ->group(group);
}

void add_server_options(CLI::App* app, ServeCommand* command) {
  serve::ServerOptions& server = command->server;
  const GroupOfHelp group(app, "Server");
  app->add_option("--host", server.host, "address to listen on, or a name: all it stands for [127.0.0.1]")
      ->check(not_empty());
  app->add_option("--port", server.port, "port to listen on, 0 for any free one [8000]")
      ->check(between(0, 65535, "a port from 0 to 65535"));
  app->add_option("--served-model-name", server.served_model_names, "name in the API [that of the model's folder]")
      ->check(not_empty());
  app->add_option("--tool-call-parser", server.tool_call_parser,
                  "how the model writes tool calls: auto (its chat template says), none, hermes, llama, qwen3_coder or "
                  "mistral [auto]")
      ->check(not_empty());
  app->add_option("--reasoning-parser", server.reasoning_parser,
                  "whether it thinks between <think> and </think>: auto, none or think [auto]")
      ->check(not_empty());
  app->add_option("--api-key-file", command->api_key_file,
                  "keys that clients must send, one a line; VOLLEY_API_KEYS adds more, separated by commas")
      ->check(not_empty())
      ->type_name("FILE");
  app->add_option("--files-dir", command->files_dir,
                  "folder for what /v1/files and /v1/batches keep; without it they are refused")
      ->check(not_empty())
      ->type_name("FOLDER");
  app->add_option("--batch-concurrency", server.batch_concurrency,
                  "lines of batches kept open at once [half of --max-num-seqs]")
      ->check(positive());
  app->add_option("--cors-origin", server.cors_origins,
                  "origin whose web pages may read answers, or * for all; may be given several times [none]")
      ->check(not_empty())
      ->type_name("ORIGIN");
  app->add_option(
         "--allowed-hosts", server.allowed_hosts,
         "names by which requests may call the server, beside those of this machine, separated by commas; * for "
         "any [any, but where --host is a loopback address none]")
      ->check(not_empty())
      ->delimiter(',')
      ->type_size(1)
      ->expected(1)
      ->take_all()
      ->type_name("HOST");
  app->add_option_function<std::string>(
         "--log-format",
         [&server](const std::string& name) {
           server.log_format = name == "json" ? serve::LogFormat::kJson : serve::LogFormat::kText;
         },
         "text, or json: one object a line [text]")
      ->check(CLI::IsMember({"text", "json"}));
  app->add_option("--log-level", command->log_level, "debug, info (every request), warning or error [info]")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app->add_flag("--log-prompts", server.log_prompts, "log what the model reads, up to 8 KiB of each prompt");
}

void add_serve(CLI::App* root, ServeCommand* command) {
  CLI::App* app = root->add_subcommand("serve", "an OpenAI-compatible HTTP server");
  add_main_options(app, &command->engine, "32; on CUDA 128");
  add_server_options(app, command);
  add_limits(app, command);
  add_speculation_options(app, &command->engine);
  add_engine_options(app, &command->engine);
}

void add_batch(CLI::App* root, BatchCommand* command) {
  CLI::App* app = root->add_subcommand("batch", "a file of requests in OpenAI's batch format; can be resumed");
  add_main_options(app, &command->engine, "as --concurrency");
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
  app->add_option("--served-model-name", command->served_model_names,
                  "name in the requests [that of the model's folder]")
      ->check(not_empty());
  app->add_option("--concurrency", command->concurrency, "requests that are kept open at once [32]")
      ->check(between(1, 65536, "a number of requests from 1 to 65536"));
}

void add_inspect(CLI::App* root, InspectCommand* command) {
  CLI::App* app = root->add_subcommand("inspect", "what a model is, what memory it takes, and whether a drafter fits");
  add_model_options(app, &command->model, &command->draft);
  add_dtype_option(app, &command->dtype);
  app->add_flag("--json", command->json, "one line of JSON instead of text");
}

// Checks the options of subcommands that run one engine for requests as they come.
Status check_one_engine(const EngineFlags& flags) {
  VOLLEY_RETURN_IF_ERROR(check_engine(flags));
  if (!flags.simulations.empty() && flags.simulations.front().of_requests.size() > 1) {
    return invalid_argument("--simulate-acceptance " + flags.simulations.front().text +
                            " says something else of each request, which only volley bench can do: give one entry");
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

// Options of the engine say nothing to an endpoint.
Status check_chat(const CLI::App& app, const ChatCommand& command) {
  VOLLEY_RETURN_IF_ERROR(check_one_engine(command.engine));
  if (!command.url) {
    if (command.api_key) return invalid_argument("--api-key is for --url: give that, too, or leave it out");
    return {};
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    const bool engine = group == "Model" || group == "Speculation" || group == "Engine";
    if (!engine || option->count() == 0 || option->get_name() == "--model") continue;
    return invalid_argument(option->get_name() + " is for a model in this process: leave it out beside --url");
  }
  return {};
}

// The subcommand that was parsed last, and how it is called: "volley bench".
const CLI::App& innermost(const CLI::App& root, std::string* name) {
  const CLI::App* app = &root;
  *name = root.get_name();
  for (auto chosen = app->get_subcommands(); !chosen.empty(); chosen = app->get_subcommands()) {
    app = chosen.front();
    *name += " " + app->get_name();
  }
  return *app;
}

Error usage_error(const std::string& sentence, const std::string& name) {
  return invalid_argument(sentence + "; see " + name + " --help");
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group : app.get_subcommands({})) {  // groups of options have no name
    if (!group->get_name().empty()) continue;
    const std::vector<std::string> inner = option_names(*group);
    names.insert(names.end(), inner.begin(), inner.end());
  }
  return names;
}

// The first option among the words that the command line does not have, or the first such word.
Error unexpected(const CLI::App& root, const CLI::App& app, const std::string& name,
                 const std::vector<std::string>& words) {
  const auto is_option = [](const std::string& word) { return word.size() > 1 && word.front() == '-'; };
  const auto found = std::ranges::find_if(words, is_option);
  if (found == words.end()) {
    return usage_error(
        "\"" + words.front() + "\" is one word too many: " + name + " takes options, such as --model DIR", name);
  }
  const std::string option = found->substr(0, found->find('='));
  for (const CLI::App* other : root.get_subcommands({})) {
    if (other == &app || std::ranges::count(option_names(*other), option) == 0) continue;
    return usage_error(option + " is an option of volley " + other->get_name() + ", not of " + name, name);
  }
  const std::string nearest = nearest_name(option, option_names(app));
  return usage_error(option + " is no option of " + name + (nearest.empty() ? "" : " (did you mean " + nearest + "?)"),
                     name);
}

// A word that is unknown comes first, for what else is wrong may follow from it. CLI11's messages are sentences but for
// the end, and some have several lines.
Error parse_error(const CLI::App& root, std::string message) {
  std::string name;
  const CLI::App& app = innermost(root, &name);
  if (const auto words = app.remaining(); !words.empty()) return unexpected(root, app, name, words);
  if (const auto words = root.remaining(); !words.empty()) return unexpected(root, root, "volley", words);
  std::ranges::replace(message, '\n', ' ');
  while (!message.empty() && (message.back() == ' ' || message.back() == '.')) message.pop_back();
  return usage_error(message, name);
}

Status check_command(const CLI::App& root, const std::vector<std::string>& words) {
  std::vector<std::string> commands;
  std::string list;
  for (const CLI::App* app : root.get_subcommands({})) {
    commands.push_back(app->get_name());
    list += (list.empty() ? "" : ", ") + app->get_name();
  }
  if (words.empty()) return usage_error("volley needs a command: " + list, "volley");
  const std::string& word = words.front();
  if (word.starts_with("-") || std::ranges::count(commands, word) > 0) return {};
  std::string hint = nearest_name(word, commands);
  if (word == "complete") hint = "generate --prompt TEXT";
  return usage_error("\"" + word + "\" is no command of volley" +
                         (hint.empty() ? ": there are " + list : " (did you mean " + hint + "?)"),
                     "volley");
}

}  // namespace

Result<Command> parse_command_line(int argc, const char* const* argv) {
  CLI::App root("Volley: an LLM serving engine that decodes with DFlash speculation.", "volley");
  root.formatter(std::make_shared<HelpFormatter>(help_width()));
  root.footer(kExitCodes);
  root.set_version_flag("--version", "volley " VOLLEY_VERSION);
  root.require_subcommand(1);
  root.fallthrough(false);
  GenerateCommand generate;
  ChatCommand chat;
  ServeCommand serve;
  BatchCommand batch;
  BenchCommand bench;
  InspectCommand inspect;
  DemoCommand demo;
  add_generate(&root, &generate);
  add_chat(&root, &chat);
  add_serve(&root, &serve);
  add_batch(&root, &batch);
  add_bench(&root, &bench);
  add_inspect(&root, &inspect);
  root.add_subcommand("demo", "three answers of the pocket models, with and without speculation")
      ->add_option("--threads", demo.threads, "threads that compute [the cores this process may use]")
      ->check(positive());
  for (CLI::App* app : root.get_subcommands({})) app->footer(kExitCodes);

  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  // Another program's options: nothing of them is ours to read.
  if (words.size() >= 2 && words[0] == "bench" && words[1] == "serving") {
    return Command(BenchServingCommand{{words.begin() + 2, words.end()}});
  }
  words = translate_aliases(std::move(words));
  VOLLEY_RETURN_IF_ERROR(check_command(root, words));
  try {
    std::ranges::reverse(words);  // as CLI11 takes them
    root.parse(words);
  } catch (const CLI::CallForVersion& version) {
    return Command(PrintAndExit{std::string(version.what()) + "\n"});
  } catch (const CLI::CallForHelp&) {
    std::string name;
    const CLI::App& asked = innermost(root, &name);
    if (&asked == &root) return Command(PrintAndExit{root.help()});
    return Command(PrintAndExit{asked.help(name.substr(0, name.size() - asked.get_name().size() - 1))});
  } catch (const CLI::ParseError& error) {
    return parse_error(root, error.what());
  }
  if (root.got_subcommand("generate")) {
    VOLLEY_RETURN_IF_ERROR(check_generate(generate));
    return Command(std::move(generate));
  }
  if (const CLI::App* app = root.get_subcommand("chat"); root.got_subcommand("chat")) {
    VOLLEY_RETURN_IF_ERROR(check_chat(*app, chat));
    return Command(std::move(chat));
  }
  if (root.got_subcommand("serve")) {
    VOLLEY_RETURN_IF_ERROR(check_one_engine(serve.engine));
    // More than the queue holds would be a 429 however often it is sent.
    serve.server.max_choices = std::min(serve.server.max_choices, serve.engine.base.max_queue);
    return Command(std::move(serve));
  }
  if (root.got_subcommand("batch")) {
    VOLLEY_RETURN_IF_ERROR(check_one_engine(batch.engine));
    return Command(std::move(batch));
  }
  if (root.get_subcommand("bench")->got_subcommand("serving")) {
    return usage_error("options stand before serving, where they mean nothing: write volley bench serving first",
                       "volley bench");
  }
  if (root.got_subcommand("bench")) {
    VOLLEY_RETURN_IF_ERROR(check_bench(bench));
    return Command(std::move(bench));
  }
  if (root.got_subcommand("inspect")) return Command(std::move(inspect));
  return Command(demo);
}

}  // namespace volley::apps
