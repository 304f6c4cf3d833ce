#include "apps/bench_options.h"

#include <string>
#include <utility>
#include <vector>

#include "apps/option_groups.h"

namespace volley::apps {
namespace {

void add_serving_load_options(CLI::App* app, BenchServingCommand* command) {
  const std::string group = "Load";
  auto* concurrency = app->add_option("--concurrency", command->concurrency, "requests open at once, a list [1,8]")
                          ->delimiter(',')
                          ->check(between(1, 4096, "a number of requests from 1 to 4096"))
                          ->group(group);
  app->add_option("--request-rate", command->request_rates, "instead: requests started a second (Poisson), a list")
      ->delimiter(',')
      ->check(between(1e-3, 1e5, "a rate from 0.001 to 100000"))
      ->excludes(concurrency)
      ->group(group);
  app->add_option("--arrival-seed", command->arrival_seed, "of the Poisson process [1]")->check(seed())->group(group);
  app->add_option("--num-prompts", command->num_prompts, "requests a measurement, the first of the dataset [128]")
      ->check(positive())
      ->group(group);
  app->add_option("--warmup", command->warmup, "requests before each measurement [the concurrency, at most 8]")
      ->check(not_negative())
      ->group(group);
  app->add_flag("--sweep", command->sweep, "each load without and with speculation, and the speedup")->group(group);
  app->add_option("--timeout", command->timeout_s, "seconds that one answer may take [600]")
      ->check(positive())
      ->group(group);
}

void add_bench_serving(CLI::App* bench, BenchServingCommand* command) {
  CLI::App* app = bench->add_subcommand("serving", "drives an OpenAI-compatible endpoint, Volley's or another");
  app->add_option("--url", command->url, "the endpoint, such as http://127.0.0.1:8000")
      ->required()
      ->check(not_empty())
      ->type_name("URL");
  app->add_option("--baseline-url", command->baseline_url,
                  "of --sweep: an endpoint without speculation [the same one, with Volley's switch]")
      ->check(not_empty())
      ->type_name("URL");
  app->add_option("--model", command->model, "name in the API [the first that the endpoint lists]")->check(not_empty());
  app->add_option("--api-key-file", command->api_key_file, "file that holds the endpoint's key")
      ->check(not_empty())
      ->type_name("FILE");
  app->add_option("--dataset", command->dataset, "GSM8K or HumanEval as published, or JSON lines; may be gzipped")
      ->required()
      ->check(not_empty())
      ->type_name("FILE");
  app->add_option("--format", command->format, "of the dataset: auto, gsm8k, humaneval or jsonl [auto]")
      ->check(CLI::IsMember({"auto", "gsm8k", "humaneval", "jsonl"}));
  app->add_option("--instruction", command->instruction, "line after each GSM8K question, none for none")
      ->check(some_text());
  app->add_option("--endpoint", command->endpoint, "chat or completions [completions for HumanEval, else chat]")
      ->check(CLI::IsMember({"auto", "chat", "completions"}));
  add_sampling_options(app, &command->settings, "Sampling (greedy unless --temperature is given)");
  app->add_option("--max-tokens", command->settings.max_tokens, "most tokens of an answer [the line's, else 512]")
      ->check(positive());
  app->add_option("--extra-body", command->extra_json, "more fields for every request, a JSON object")
      ->check(json_object())
      ->type_name("JSON");
  add_serving_load_options(app, command);
  app->add_option("--output", command->output, "write the measurements as JSON")
      ->check(not_empty())
      ->type_name("FILE.json");
  app->add_option("--plot", command->plot, "draw throughput and time per token over the load")
      ->check(not_empty())
      ->type_name("FILE.svg");
  app->add_flag("--json", command->json, "end with the measurements as one line of JSON on stdout");
  app->footer(kExitCodes);
}

// add_speculation_options() has them for one run.
void add_bench_verify(CLI::App* app, BenchCommand* command) {
  app->add_option_function<std::vector<std::string>>(
         "--simulate-acceptance",
         [command](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             auto parsed = parse_simulation(text);
             if (!parsed.ok()) throw CLI::ValidationError("--simulate-acceptance", parsed.error().message);
             command->engine.simulations.push_back(std::move(*parsed));
           }
         },
         "position i of a block is accepted with P^i, the texts mean nothing; P,P,…: of requests in turn; P+STEP:P: "
         "another P from this decoding step of the request on; with --rounds it may be given several times")
      ->type_name("geometric:LIST")
      ->type_size(1)
      ->expected(1)
      ->take_all();
  app->add_option_function<std::vector<std::string>>(
         "--verify",
         [command](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) command->verify.push_back(verify_option(text));
         },
         "drafted tokens of a request that a step verifies, a list of auto, full and numbers [auto]")
      ->delimiter(',')
      ->type_name("auto|full|N");
  app->add_option("--repeat", command->repeat,
                  "runs of each measurement, modes in turn; the table compares medians [1, with --rounds 3]")
      ->check(between(1, 1000, "a number of runs from 1 to 1000"));
  const std::string group = "Rounds: random prompts, measured while all decode";
  app->add_option("--rounds", command->rounds, "measure so many steps instead of whole answers")
      ->check(between(1, 1e6, "a number of rounds from 1 to 1000000"))
      ->group(group);
  app->add_option("--warm-rounds", command->warm_rounds, "steps before each measurement [50]")
      ->check(between(0, 1e6, "a number of rounds from 0 to 1000000"))
      ->group(group);
  app->add_option("--concurrency-schedule", command->schedule,
                  "loads that follow one another, --rounds steps each, instead of --concurrency: no table but --trace; "
                  "load i takes --simulate-acceptance number i")
      ->delimiter(',')
      ->check(between(1, 65536, "a number of requests from 1 to 65536"))
      ->group(group);
  app->add_option("--trace", command->trace, "of --concurrency-schedule: what the engine did, one JSON object a line")
      ->check(not_empty())
      ->type_name("FILE.jsonl")
      ->group(group);
}

}  // namespace

void add_bench(CLI::App* root, BenchCommand* command, BenchServingCommand* serving) {
  CLI::App* app = root->add_subcommand("bench", "throughput over concurrency, with and without speculation");
  add_main_options(app, &command->engine, "the largest --concurrency");
  add_engine_options(app, &command->engine);
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
  add_bench_verify(app, command);
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
  add_bench_serving(app, serving);
}

Status check_bench(const BenchCommand& command) {
  VOLLEY_RETURN_IF_ERROR(check_engine(command.engine));
  if (!command.rounds) {
    if (command.engine.simulations.size() > 1) {
      return invalid_argument("--simulate-acceptance is given more than once, which --rounds can measure: add it");
    }
    if (!command.schedule.empty() || command.trace) {
      return invalid_argument("--concurrency-schedule and --trace need --rounds: say how many each load gets");
    }
    return {};
  }
  if (command.input) return invalid_argument("--rounds measures random prompts: leave out --input");
  if (command.block_sizes.size() > 1) return invalid_argument("--rounds takes one --block-size: list --verify instead");
  if (command.schedule.empty() != !command.trace) {
    return invalid_argument("--concurrency-schedule and --trace belong together: give both or neither");
  }
  if (command.trace && (command.verify.size() > 1 || command.speculation.size() > 1)) {
    return invalid_argument("--trace follows one engine: give one --verify and at most one --spec");
  }
  return {};
}

Status check_bench_serving(const CLI::App& bench, const BenchServingCommand& command) {
  for (const CLI::Option* option : bench.get_options()) {
    if (option->count() > 0) {
      return invalid_argument(option->get_name() +
                              " stands before serving, where it means nothing: write volley bench "
                              "serving and then the options");
    }
  }
  if (command.baseline_url && !command.sweep) {
    return invalid_argument("--baseline-url is the other side of --sweep: add --sweep, or leave it out");
  }
  return {};
}

}  // namespace volley::apps
