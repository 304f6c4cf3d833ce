#include "apps/cli/bench_options.h"

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/option_groups.h"

namespace volley::apps {
namespace {

// The lists of bench; add_speculation_options() has the same options for one run.
void add_bench_verify(CLI::App* app, BenchCommand* command) {
  const auto simulate = [command](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      auto parsed = parse_simulation(text);
      if (!parsed.ok()) throw CLI::ValidationError("--simulate-acceptance", parsed.error().message);
      command->engine.simulations.push_back(std::move(*parsed));
    }
  };
  one_value_each(app->add_option_function<std::vector<std::string>>(
                     "--simulate-acceptance", simulate,
                     "position i of a block is accepted with P^i, the texts mean nothing; P,P,…: of requests in turn; "
                     "P+STEP:P: another P from this decoding step of the request on; with --rounds it may be given "
                     "several times"))
      ->type_name("geometric:LIST");
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

void add_bench(CLI::App* root, BenchCommand* command) {
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
  // These matter without --input. They ask for random prompts, which otherwise come after those in the model's folder.
  const auto of_random = [app, command](const char* name, auto& value, const char* help) {
    using T = std::remove_reference_t<decltype(value)>;
    const auto set = [command, &value](const T& given) {
      value = given;
      command->random_prompts = true;
    };
    return app->add_option_function<T>(name, set, help);
  };
  of_random("--prompt-tokens", command->prompt_tokens,
            "length of a random prompt [128; the pocket pair gets prompts of its own tasks]")
      ->check(positive());
  app->add_option("--output-tokens", command->output_tokens, "most tokens of an answer [128]")->check(positive());
  app->add_option("--requests", command->requests, "requests a measurement [the concurrency, at least 4]")
      ->check(positive());
  of_random("--prompt-seed", command->prompt_seed, "of the random prompts [1]")->check(seed());
  app->add_option("--input", command->input, "prompts as for generate, instead of random ones")
      ->check(not_empty())
      ->type_name("FILE.jsonl");
  app->add_option("--output", command->output, "write the measurements as JSON")
      ->check(not_empty())
      ->type_name("FILE.json");
  app->add_flag("--kernel-times", command->kernel_times,
                "after each measurement on a GPU, what the time of a step went to, by kinds of kernels (needs CUPTI)");
  app->add_flag("--json", command->json, "end with the measurements as one line of JSON on stdout");
  // Exists for the help: parse_command_line() hands this command over before it parses.
  app->add_subcommand("serving",
                      "volley-suite: datasets against any OpenAI endpoint; has options and --help of its own");
}

Status check_bench(const BenchCommand& command) {
  VOLLEY_RETURN_IF_ERROR(check_engine(command.engine));
  const int64_t most = std::numeric_limits<int32_t>::max();  // tokens of a context
  if (!command.input && !command.rounds && int64_t{command.prompt_tokens} + command.output_tokens > most) {
    return invalid_argument("--prompt-tokens " + std::to_string(command.prompt_tokens) + " and --output-tokens " +
                            std::to_string(command.output_tokens) + " are more than " + std::to_string(most) +
                            " together: lower one of them");
  }
  if (command.kernel_times && command.rounds)
    return invalid_argument("--kernel-times measures whole answers: leave out --rounds");
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

}  // namespace volley::apps
