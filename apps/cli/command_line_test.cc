// The command line must end a typing mistake with a sentence, never with a default.
#include <gtest/gtest.h>

#include "apps/cli/parse_for_test.h"

namespace volley::apps {
namespace {

TEST(CommandLine, GenerateTakesEveryOption) {
  const auto command = command_of<GenerateCommand>(
      parse_words("generate --model m --draft d --device cpu --dtype float32 --threads 2 "
                  "--tensor-parallel-size 16 --enable-expert-parallel --data-parallel-size 3 --nnodes 2 "
                  "--node-rank 1 --master-addr gpu-1 --master-port 77 --chat hi --output o --json "
                  "--max-tokens 9 --min-tokens 3 --temperature 0.5 --top-p 0.9 --top-k -1 --min-p 0.1 "
                  "--repetition-penalty 1.2 --presence-penalty -1 --frequency-penalty 2 --seed "
                  "18446744073709551615 --stop a --stop b --ignore-eos --spec dflash --block-size 8 "
                  "--quantization int4 --draft-quantization fp8 --draft-window 64 --concurrency 5 "
                  "--page-size 32 --prefill-chunk 64 --no-prefix-cache --no-mmap --max-num-seqs 6 "
                  "--max-num-batched-tokens 128 --max-model-len 256 --kv-cache-dtype float32 "
                  "--attention-backend portable --draft-attention-backend plain --dummy-weights 7 "
                  "--simulate-acceptance geometric:0.5+200:0.25 --simulate-confidence-odds 2 --verify 7 "
                  "--cost-cache none --draft-window-mask bidirectional --kv-pages 12"));
  // One option of each kind suffices: the table declares each option with its field.
  const EngineOptions& base = command.engine.base;
  EXPECT_EQ(command.engine.model, "m");
  EXPECT_EQ(command.engine.draft, "d");
  EXPECT_EQ(command.engine.speculation, Speculation::kOn);
  EXPECT_EQ(base.dtype, ComputeType::kFloat32);
  EXPECT_EQ(base.threads, 2);
  EXPECT_TRUE(base.enable_expert_parallel);
  EXPECT_EQ(base.master_addr, "gpu-1");
  EXPECT_EQ(base.block_size, 8);
  EXPECT_FALSE(base.prefix_cache);
  EXPECT_FALSE(base.mmap);
  EXPECT_EQ(base.dummy_weights, 7u);
  ASSERT_EQ(command.engine.simulations.size(), 1u);
  EXPECT_EQ(command.engine.simulations[0].of(0).phases[1].p, 0.25);
  EXPECT_EQ(command.engine.confidence_odds, 2);
  EXPECT_EQ(base.verify.kind, VerifyPolicy::Kind::kFixed);
  EXPECT_EQ(base.verify.tokens, 7);
  EXPECT_EQ(base.cost_cache_dir, "none");
  EXPECT_EQ(command.concurrency, 5);
  EXPECT_TRUE(command.json);
  const RequestSettings& settings = command.settings;
  EXPECT_EQ(settings.max_tokens, 9);
  EXPECT_EQ(settings.min_tokens, 3);
  EXPECT_EQ(settings.temperature, 0.5f);
  EXPECT_EQ(settings.top_k, -1);
  EXPECT_EQ(settings.presence_penalty, -1.0f);
  EXPECT_EQ(settings.seed, 18446744073709551615u);
  EXPECT_EQ(settings.ignore_eos, true);
  EXPECT_EQ(settings.stop, (std::vector<std::string>{"a", "b"}));
}

TEST(CommandLine, WhatIsNotGivenStaysUnset) {
  const auto command = command_of<GenerateCommand>(parse({"generate", "--prompt", "x"}));
  EXPECT_FALSE(command.settings.temperature || command.settings.seed || command.settings.stop);
  EXPECT_FALSE(command.engine.speculation || command.engine.model || command.engine.draft);
  EXPECT_EQ(command.engine.base.cost_cache_dir, "");
  EXPECT_TRUE(command.engine.simulations.empty());
  EXPECT_EQ(command.engine.base.verify.kind, VerifyPolicy::Kind::kAuto);
  EXPECT_TRUE(command.engine.base.prefix_cache);
  EXPECT_TRUE(command.engine.base.mmap);
}

TEST(CommandLine, RefusesWithOneSentence) {
  std::vector<Result<Command>> wrong = {parse({"serve", "--cost-cache", ""}),
                                        parse({"generate", "--prompt", ""}),
                                        parse({"generate", "--chat", ""}),
                                        parse({"generate", "--prompt", "a", "--stop", ""}),
                                        parse({"generate", "--prompt", "a", "--model", ""}),
                                        parse({"serve", "--served-model-name", ""})};
  for (const char* words : {"frobnicate",
                            "generate",
                            "generate --prompt a --chat b",
                            "generate --prompt a --unknown",
                            "generate --prompt a model extra",
                            "generate --prompt a --max-tokens 0",
                            "generate --prompt a --max-tokens x",
                            "generate --prompt a --max-tokens 1.5",
                            "generate --prompt a --temperature nan",
                            "generate --prompt a --temperature -0.1",
                            "generate --prompt a --top-p 0",
                            "generate --prompt a --seed -1",
                            "generate --prompt a --device gpu",
                            "generate --prompt a --block-size 1",
                            "generate --prompt a --block-size 8 --spec off",
                            "generate --prompt a --page-size 24",
                            "generate --prompt a --simulate-acceptance 0.5",
                            "generate --prompt a --simulate-acceptance geometric:1.5",
                            "generate --prompt a --simulate-acceptance geometric:0.5,0.3",
                            "generate --prompt a --simulate-confidence-odds 2",
                            "serve --simulate-acceptance geometric:0.5 --simulate-confidence-odds 0",
                            "generate --prompt a --verify most",
                            "generate --prompt a --verify -1",
                            "serve --verify 3 --spec off",
                            "bench --verify auto,most",
                            "bench --repeat 0",
                            "bench --rounds 0",
                            "bench --simulate-acceptance geometric:0.5 --simulate-acceptance geometric:0.6",
                            "bench --trace t --concurrency-schedule 1,2",
                            "bench --rounds 9 --trace t",
                            "bench --rounds 9 --concurrency-schedule 1,2",
                            "bench --rounds 9 --concurrency-schedule 1 --trace t --verify auto,0",
                            "bench --rounds 9 --input f",
                            "bench --rounds 9 --block-size 4,8",
                            "generate --prompt \xff",
                            "generate --chat a\xc3",
                            "generate --prompt a --min-tokens 3 --max-tokens 2",
                            "generate --prompt a --dummy-weights -1",
                            "generate --prompt a --seed 18446744073709551616",
                            "serve --port 65536",
                            "serve --prompt a",
                            "serve --nnodes 0",
                            "serve --node-rank -1",
                            "serve --master-port 0",
                            "serve --dist-init-addr gpu-1",
                            "serve --dist-init-addr :5",
                            "serve --dist-init-addr gpu-1:0",
                            "bench --concurrency 0",
                            "bench --spec fast",
                            "generate --prompt a --device cuda:x",
                            "batch --input a",
                            "batch --output b",
                            "batch --input a --output b --concurrency 0",
                            "bench --concurrency 2 serving --url u --dataset d"}) {
    wrong.push_back(parse_words(words));
  }
  for (const Result<Command>& parsed : wrong) {
    ASSERT_FALSE(parsed.ok()) << &parsed - wrong.data();
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(parsed.error().message.empty()) << &parsed - wrong.data();
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos) << parsed.error().message;
  }
}

// The message names the wrong word, then the likely intention, then the right help.
TEST(CommandLine, NamesTheUnknownWordAndTheNearestOne) {
  const auto message = [](std::vector<const char*> arguments) { return refusal(parse(std::move(arguments))); };
  EXPECT_EQ(message({"serv", "--port", "1"}),
            "\"serv\" is no command of volley (did you mean serve?); see volley --help");
  EXPECT_EQ(message({"complete"}),
            "\"complete\" is no command of volley (did you mean generate --prompt TEXT?); see volley --help");
  EXPECT_EQ(message({"chat", "--url", "http://x", "--threads", "2"}),
            "--threads is for a model in this process: leave it out beside --url");
  EXPECT_EQ(message({"chat", "--api-key", "k"}), "--api-key is for --url: give that, too, or leave it out");
  EXPECT_EQ(
      message({"frobnicate"}),
      "\"frobnicate\" is no command of volley: there are generate, chat, run, pull, serve, batch, bench, inspect, "
      "demo, collect-env, completion, help; see volley --help");
  EXPECT_EQ(message({"run", "--api-key", "k"}), "--api-key is for --url: give that, too, or leave it out");
  EXPECT_EQ(
      message({"serve", "--memory-fractoin", "0.9"}),
      "--memory-fractoin is no option of volley serve (did you mean --memory-fraction?); see volley serve --help");
  EXPECT_EQ(message({"serve", "--kv-transfer=fp8"}),
            "--kv-transfer is no option of volley serve; see volley serve --help");
  EXPECT_EQ(message({"serve", "--prompt", "a"}),
            "--prompt is an option of volley generate, not of volley serve; see volley serve --help");
  EXPECT_EQ(
      message({"serve", "some/model", "other/model"}),
      "\"other/model\" is one word too many: volley serve takes one model, as its first word or with --model, and "
      "options; see volley serve --help");
  EXPECT_EQ(message({"demo", "some/model"}),
            "\"some/model\" is one word too many: volley demo takes options alone; see volley demo --help");
  EXPECT_EQ(message({"serve", "some/model", "--model", "other/model"}),
            "--model takes one value and got 2: give it once; see volley serve --help");
  EXPECT_TRUE(message({"generate", "--prompt", "a", "--top-p", "2"}).ends_with("; see volley generate --help"));
  EXPECT_EQ(message({"serve", "--enable-chunked-prefill=false"}),
            "--enable-chunked-prefill is no option of volley serve: what it asks for is always so, leave it out; see "
            "volley serve --help");
  EXPECT_EQ(message({"bench", "--prompt-tokens", "2147483647", "--output-tokens", "2"}),
            "--prompt-tokens 2147483647 and --output-tokens 2 are more than 2147483647 together: lower one of them");
  EXPECT_EQ(message({"generate", "--prompt", "a", "--prompt", "b"}),
            "--prompt takes one value and got 2: give it once; see volley generate --help");
  // Words mistaken for a key would open the server.
  for (const std::vector<const char*>& swallowed :
       std::vector<std::vector<const char*>>{{"serve", "m", "--api-key", "sk-long", "8000"},
                                             {"serve", "m", "--allowed-hosts", "a.example", "8000"},
                                             {"generate", "m", "--prompt", "a", "--stop", "x", "8000"},
                                             {"bench", "m", "--simulate-acceptance", "geometric:0.5", "8000"}}) {
    EXPECT_TRUE(message(swallowed).starts_with("\"8000\" is one word too many")) << message(swallowed);
  }
}

TEST(CommandLine, RefusesOriginsAndHostsThatNobodySends) {
  const std::string origin = refusal(parse_words("serve --cors-origin https://a.example/"));
  EXPECT_TRUE(origin.starts_with("--cors-origin: \"https://a.example/\" is no origin")) << origin;
  const std::string host = refusal(parse_words("serve --allowed-hosts a.example,http://b.example"));
  EXPECT_TRUE(host.starts_with("--allowed-hosts: \"http://b.example\" is no name of a host")) << host;
}

TEST(CommandLine, TextsKeepTheirBrackets) {
  const auto generate = command_of<GenerateCommand>(
      parse({"generate", "--prompt", "a", "--stop", "[/INST]", "--stop=[a, b]", "--stop", "]["}));
  EXPECT_EQ(generate.settings.stop, (std::vector<std::string>{"[/INST]", "[a, b]", "]["}));
  const auto command = command_of<ServeCommand>(
      parse_words("serve --api-key [k] --api-key=[k,l] --allowed-hosts [::1],[::2] --served-model-name [m] n "
                  "--served-model-name o --cors-origin http://[::1]:3000"));
  EXPECT_EQ(command.api_keys, (std::vector<std::string>{"[k]", "[k,l]"}));
  EXPECT_EQ(command.server.allowed_hosts, (std::vector<std::string>{"[::1]", "[::2]"}));
  EXPECT_EQ(command.server.served_model_names, (std::vector<std::string>{"[m]", "n", "o"}));
  EXPECT_EQ(command.server.cors_origins, (std::vector<std::string>{"http://[::1]:3000"}));
}

// CLI11 reads 0100 as 64.
TEST(CommandLine, ANumberDoesNotBeginWithZero) {
  for (const std::string words :
       {"--max-num-seqs 0100", "--seed 010", "--top-k -01", "--tensor-parallel-size 010", "--concurrency 07"}) {
    const std::string why = refusal(parse_words("generate --prompt a " + words));
    EXPECT_NE(why.find("begins with a 0"), std::string::npos) << why;
  }
  EXPECT_EQ(refusal(parse_words("generate --prompt a --seed 0 --top-k 0 --min-p 0.5")), "accepted");
}

TEST(CommandLine, AnAddressWithItsPortCountsOnce) {
  for (const std::string twice : {"--master-addr a", "--master-port 2", "--dist-init-addr a:2"}) {
    EXPECT_FALSE(parse_words("serve --dist-init-addr b:1 " + twice).ok()) << twice;
    EXPECT_FALSE(parse_words("serve " + twice + " --dist-init-addr b:1").ok()) << twice;
  }
}

TEST(CommandLine, ACacheOfCodesIsE4m3) {
  for (const char* name : {"fp8", "fp8_e4m3"}) {
    const auto command = command_of<ServeCommand>(parse({"serve", "--kv-cache-dtype", name}));
    EXPECT_EQ(command.engine.base.kv_cache_dtype, KvCacheType::kFp8);
  }
  const std::string other = refusal(parse_words("serve --kv-cache-dtype fp8_e5m2"));
  EXPECT_NE(other.find("fp8_e5m2 is not built"), std::string::npos) << other;
  EXPECT_FALSE(parse_words("serve --kv-cache-dtype int8").ok());
}

TEST(CommandLine, TakesOtherServersNamesOfOptions) {
  const auto parsed = parse_words(
      "serve --model-path m --gpu-memory-utilization=0.5 --context-length 99 "
      "--max-running-requests 7 --speculative-draft-model-path d --enable-prefix-caching=false "
      "--dist-init-addr [::1]:5000");
  const EngineFlags flags = command_of<ServeCommand>(parsed).engine;
  EXPECT_EQ(flags.model, "m");
  EXPECT_EQ(flags.draft, "d");
  EXPECT_EQ(flags.base.memory_fraction, 0.5);
  EXPECT_EQ(flags.base.max_model_len, 99);
  EXPECT_EQ(flags.base.max_num_seqs, 7);
  EXPECT_FALSE(flags.base.prefix_cache);
  EXPECT_EQ(flags.base.master_addr, "::1");
  EXPECT_EQ(flags.base.master_port, 5000);
}

TEST(CommandLine, ANumberThatIsTooLargeIsCalledThat) {
  for (const std::string words :
       {"--max-tokens 99999999999", "--top-k 1e400", "--temperature 101", "--seed 18446744073709551616"}) {
    const std::string why = refusal(parse_words("generate --prompt a " + words));
    EXPECT_NE(why.find(words.substr(words.find(' ') + 1) + " is too large"), std::string::npos) << why;
  }
}

TEST(CommandLine, BenchTakesLists) {
  const auto command = command_of<BenchCommand>(
      parse({"bench", "--concurrency", "1,8,32", "--spec", "off,dflash", "--block-size", "4,16", "--requests", "2"}));
  EXPECT_EQ(command.concurrency, (std::vector<int>{1, 8, 32}));
  EXPECT_EQ(command.speculation, (std::vector<Speculation>{Speculation::kOff, Speculation::kOn}));
  EXPECT_EQ(command.block_sizes, (std::vector<int>{4, 16}));
}

TEST(CommandLine, BenchTakesPoliciesAndLoads) {
  const auto command = command_of<BenchCommand>(
      parse_words("bench --rounds 200 --warm-rounds 20 --repeat 5 --verify auto full 0 --verify 7,15 "
                  "--simulate-acceptance geometric:0.3 --simulate-acceptance geometric:0.95,0.3 "
                  "--concurrency 1 8"));
  EXPECT_EQ(command.rounds, 200);
  EXPECT_EQ(command.warm_rounds, 20);
  EXPECT_EQ(command.repeat, 5);
  std::string names;
  for (const VerifyPolicy& policy : command.verify) names += verify_name(policy) + " ";
  EXPECT_EQ(names, "auto full 0 7 15 ");
  ASSERT_EQ(command.engine.simulations.size(), 2u);
  EXPECT_EQ(command.engine.simulations[1].of_requests.size(), 2u);
  EXPECT_EQ(command.concurrency, (std::vector<int>{1, 8}));
  const auto trace =
      command_of<BenchCommand>(parse_words("bench --rounds 9 --concurrency-schedule 1,64,1 --trace t.jsonl"));
  EXPECT_EQ(trace.schedule, (std::vector<int>{1, 64, 1}));
}

TEST(CommandLine, BatchAndBenchServing) {
  const auto batch =
      command_of<BatchCommand>(parse_words("batch --input a --output b --served-model-name m --spec off"));
  EXPECT_EQ(batch.concurrency, 32);
  EXPECT_EQ(batch.engine.speculation, Speculation::kOff);
  // The other words are another program's.
  const auto serving =
      command_of<BenchServingCommand>(parse({"bench", "serving", "--url", "u", "--help", "--max-num-seqs", "", "--"}));
  EXPECT_EQ(serving.arguments, (std::vector<std::string>{"--url", "u", "--help", "--max-num-seqs", "", "--"}));
  const std::string before = refusal(parse_words("bench --concurrency 4 serving"));
  EXPECT_NE(before.find("volley bench serving first"), std::string::npos) << before;
  const auto help = command_of<PrintAndExit>(parse_words("bench --help"));
  EXPECT_NE(help.text.find("volley-suite"), std::string::npos);
}

}  // namespace
}  // namespace volley::apps
