// The program as its user sees it: exit statuses, stdout and stderr, Ctrl-C.
#include <sys/stat.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <regex>

#include "apps/program_for_test.h"

namespace volley::apps {
namespace {

// A copy of the pocket model whose files a test may change.
class OwnModel {
 public:
  OwnModel() : path_((fs::temp_directory_path() / (std::to_string(getpid()) + "_own_model")).string()) {
    fs::remove_all(path_);
    fs::copy("models/pocket", path_);
  }
  ~OwnModel() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string weights() const { return path_ + "/model.safetensors"; }

 private:
  std::string path_;
};

// A report has the facts and the effective options with their sources, and no secret.
TEST(Cli, CollectEnvSaysWhatCountsAndHidesKeys) {
  const TempFile config("collect.yaml", "max-num-seqs: 3\napi-key: [secret-one]\n");
  setenv("VOLLEY_API_KEYS", "secret-two", 1);
  setenv("VOLLEY_ARGS", "--port 1 --api-key secret-three", 1);
  Program json({"collect-env", "--config", config.path(), "--port", "1", "--model", "models/pocket", "--json"});
  ASSERT_EQ(json.status(), 0) << json.err();
  Program text({"collect-env", "--config", config.path()});
  ASSERT_EQ(text.status(), 0) << text.err();
  unsetenv("VOLLEY_API_KEYS");
  unsetenv("VOLLEY_ARGS");
  EXPECT_EQ((json.out() + text.out() + json.err() + text.err()).find("secret"), std::string::npos);
  const Json facts = json.last_json();
  EXPECT_GE(facts["cpu"]["usable_cores"], 1);
  EXPECT_GT(facts["memory"]["available_bytes"], 0);
  EXPECT_TRUE(facts["gpu"].contains("devices"));
  EXPECT_GT(facts["models"]["target"]["parameters"], 0);
  std::map<std::string, std::string> sources;
  for (const Json& option : facts["options"]) sources[option["option"]] = option["source"];
  EXPECT_EQ(sources["--port"], "command line");
  EXPECT_EQ(sources["--max-num-seqs"], config.path() + ":1");
  EXPECT_EQ(sources["--api-key"], config.path() + ":2");
  EXPECT_EQ(sources["VOLLEY_API_KEYS"], "environment");
  EXPECT_NE(text.out().find("--max-num-seqs 3 (" + config.path() + ":1)"), std::string::npos) << text.out();
}

// Variables become options, and an unknown one is named.
TEST(Cli, VariablesOfTheEnvironment) {
  setenv("VOLLEY_THREADS", "x", 1);
  Program wrong({"demo"});
  EXPECT_EQ(wrong.status(), 2);
  unsetenv("VOLLEY_THREADS");
  expect_one_error(wrong);
  EXPECT_NE(wrong.err().find("VOLLEY_THREADS: x"), std::string::npos) << wrong.err();
  setenv("VOLLEY_THREAD", "1", 1);
  Program unknown({"completion", "bash"});
  EXPECT_EQ(unknown.status(), 0);
  unsetenv("VOLLEY_THREAD");
  EXPECT_EQ(unknown.err(), "volley: nothing reads the variable VOLLEY_THREAD (did you mean VOLLEY_THREADS?)\n");
}

// The pocket model is greedy by its own settings.
TEST(Cli, DefaultsOfSamplingAndTheTemplateCanBeReplaced) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = words("generate --max-tokens 24 --seed 5 --chat", {"Tell me a story."});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Program(arguments).finished_out();
  };
  const std::string hot = answer({"--temperature", "3"});
  EXPECT_EQ(answer({"--override-generation-config", R"({"temperature": 3})"}), hot);
  EXPECT_NE(answer({}), hot);
  EXPECT_EQ(answer({"--generation-config", "none"}), answer({"--temperature", "1"}));
  const TempFile story("story.jinja", "{{ told }}");
  EXPECT_EQ(answer({"--chat-template", story.path(), "--default-chat-template-kwargs", R"({"told": "Once upon"})"}),
            Program({"generate", "--prompt", "Once upon", "--max-tokens", "24", "--seed", "5"}).finished_out());
  const TempFile broken("broken.jinja", "{% if %}");
  Program refused({"generate", "--chat", "x", "--chat-template", broken.path()});
  EXPECT_EQ(refused.status(), 2);
  EXPECT_NE(refused.err().find(broken.path()), std::string::npos) << refused.err();
}

struct Ended {
  int status;
  std::string out, err;
};

// Runs a program that answers one prompt, changes its weights, and lets it answer another; a pipe keeps it running.
Ended with_weights_changed(const OwnModel& model, const std::string& options, const std::function<void()>& change) {
  const TempFile pipe("changed_weights_pipe");
  fs::remove(pipe.path());
  EXPECT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  // Opened for reading and writing, because that does not wait for the program, which may have ended already.
  const int lines = open(pipe.path().c_str(), O_RDWR | O_CLOEXEC);
  Program program(words("generate --draft none --max-tokens 2 --concurrency 1 " + options,
                        {"--model", model.path(), "--input", pipe.path()}));
  const std::string first = "{\"prompt\": \"first\"}\n", second = "{\"prompt\": \"second, in other words\"}\n";
  EXPECT_EQ(write(lines, first.data(), first.size()), static_cast<ssize_t>(first.size()));
  EXPECT_TRUE(program.wait_for_output("\n")) << program.err();
  change();
  EXPECT_EQ(write(lines, second.data(), second.size()), static_cast<ssize_t>(second.size()));
  close(lines);
  const int status = program.status();
  return {status, program.out(), program.err()};
}

// `cp` over mapped weights shortens them in place. The program ends with a sentence, not a bare signal.
TEST(Cli, WeightsCutShortWhileTheyAreMappedAreNamed) {
  const OwnModel model;
  const auto size = fs::file_size(model.weights());
  const Ended cut = with_weights_changed(model, "", [&] {
    fs::resize_file(model.weights(), 0);
    fs::resize_file(model.weights(), size / 1000);
  });
  EXPECT_EQ(cut.status, 3);
  EXPECT_NE(cut.err.find(model.weights() + " was cut short while it was in use"), std::string::npos) << cut.err;
  fs::copy("models/pocket/model.safetensors", model.weights(), fs::copy_options::overwrite_existing);
  const Ended read = with_weights_changed(model, "--no-mmap", [&] { fs::resize_file(model.weights(), 0); });
  EXPECT_EQ(read.status, 0) << read.err;
}

// Deleted or renamed weights stay unchanged for a program that has mapped them.
TEST(Cli, WeightsReplacedWhileTheyAreMappedStay) {
  const OwnModel model;
  const Ended whole = with_weights_changed(model, "", [] {});
  EXPECT_EQ(whole.status, 0) << whole.err;
  const Ended replaced = with_weights_changed(model, "", [&] {
    const std::string other = model.weights() + ".new";
    std::ofstream(other) << "no weights";
    fs::rename(other, model.weights());
  });
  EXPECT_EQ(replaced.status, 0) << replaced.err;
  EXPECT_EQ(replaced.out, whole.out);
  fs::copy("models/pocket/model.safetensors", model.weights(), fs::copy_options::overwrite_existing);
  const Ended deleted = with_weights_changed(model, "", [&] { fs::remove(model.weights()); });
  EXPECT_EQ(deleted.status, 0) << deleted.err;
  EXPECT_EQ(deleted.out, whole.out);
}

// A model's template must not keep the program from starting or ending.
TEST(Cli, AModelWhoseTemplateDoesNotEndIsRefused) {
  const OwnModel model;
  std::ofstream(model.path() + "/chat_template.jinja")
      << "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  Program program({"generate", "--model", model.path(), "--draft", "none", "--prompt", "a"});
  EXPECT_EQ(program.status(), 3);
  expect_one_error(program);
  EXPECT_NE(program.err().find("chat_template.jinja"), std::string::npos) << program.err();
}

// The released program has the hardening that keeps a bug from becoming more than a crash.
TEST(Cli, TheReleasedProgramIsHardened) {
  if (!VOLLEY_HARDENED) GTEST_SKIP() << "only release builds without sanitizers are hardened";
  const TempFile listing("readelf");
  const std::string command = "readelf --wide --file-header --program-headers --dynamic --dyn-syms '" VOLLEY_PROGRAM
                              "' > '" +
                              listing.path() + "'";
  if (std::system(command.c_str()) != 0) GTEST_SKIP() << "no readelf";
  std::ifstream file(listing.path());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto has = [&](const std::string& pattern) { return std::regex_search(text, std::regex(pattern)); };
  EXPECT_TRUE(has("Type: +DYN")) << "loaded at another address each time";
  EXPECT_TRUE(has("FLAGS_1[^\n]*NOW[^\n]*PIE")) << "every function is bound before main()";
  EXPECT_TRUE(has("GNU_RELRO")) << "and cannot be bound again";
  EXPECT_TRUE(has("GNU_STACK[^\n]* RW ")) << "no code on the stack";
  EXPECT_FALSE(has("LOAD[^\n]* RWE ")) << "no memory that can be written and run";
  EXPECT_TRUE(has("__stack_chk_fail"));
  EXPECT_TRUE(has("__(memcpy|memmove|memset|snprintf|read|fprintf)_chk"));
}

TEST(Cli, UsageErrorsExitWithTwo) {
  for (const char* wrong :
       {"generate", "generate --prompt a --bogus", "generate --prompt a --temperature -1",
        "generate --prompt a --draft none --spec dflash", "generate --prompt a --max-model-len 99999999",
        "generate --prompt a --max-num-seqs 8 --max-num-batched-tokens 4", "generate --input no/such/file.jsonl",
        "generate --prompt a --output /no/such/folder/file", "generate --prompt a --kv-pages 1",
        "bench --simulate-acceptance geometric:0.5 --spec off", "bench --verify auto --spec off",
        "generate --prompt a --draft none --verify 3"}) {
    Program program(words(wrong));
    EXPECT_EQ(program.status(), 2) << program.err();
    expect_one_error(program);
    EXPECT_EQ(program.out(), "");
  }
}

TEST(Cli, ModelsThatCannotBeLoadedExitWithThree) {
  for (const char* arguments :
       {"generate --model no/such/model --draft none --prompt a", "generate --draft no/such/draft --prompt a",
        "generate --model models/pocket-dflash --draft none --prompt a",
        "generate --draft models/shapes/qwen3-8b-dflash --prompt a", "inspect --model no/such/model"}) {
    Program program(words(arguments));
    EXPECT_EQ(program.status(), 3) << program.err();
    expect_one_error(program);
  }
}

TEST(Cli, AFolderInPlaceOfTheWeightsIsTheModelsFault) {
  const ModelCopy model("pocket");
  fs::remove(model / "model.safetensors");
  fs::create_directory(model / "model.safetensors");
  for (const char* command : {"generate --prompt a", "bench", "inspect", "serve"}) {
    Program program(words(command, {"--model", model.path(), "--draft", "none"}));
    EXPECT_EQ(program.status(), 3) << command;
    expect_one_error(program);
  }
}

TEST(Cli, AnOutputThatCannotBeWrittenExitsWithTwo) {
  for (const std::string place : {"/dev/full", ""}) {
    for (const char* arguments :
         {"--help", "--version", "inspect", "inspect --json", "generate --prompt a --max-tokens 2",
          "generate --input /dev/null --json", "demo", "bench --requests 1 --output-tokens 2 --concurrency 1"}) {
      Program program(words(arguments), place);
      EXPECT_EQ(program.status(), 2) << arguments << " to '" << place << "': " << program.err();
      EXPECT_NE(program.err().find("volley: Writing to standard output failed: "), std::string::npos) << program.err();
    }
  }
}

TEST(Cli, TheInputIsNeverOverwritten) {
  const std::string line = "{\"prompt\": \"a\", \"max_tokens\": 1}\n";
  const TempFile file("both.jsonl", line);
  for (const char* command : {"generate", "bench"}) {
    Program program({command, "--input", file.path(), "--output", file.path()});
    EXPECT_EQ(program.status(), 2);
    expect_one_error(program);
    std::ifstream kept(file.path());
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), line);
  }
}

TEST(Cli, AModelThatFailsToLoadLeavesTheOutputAlone) {
  const TempFile output("kept.jsonl", "earlier results\n");
  Program program({"generate", "--model", "no/such/model", "--prompt", "a", "--output", output.path()});
  EXPECT_EQ(program.status(), 3);
  std::ifstream kept(output.path());
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(kept), {}), "earlier results\n");
}

TEST(Cli, ChatAnswersAndEndsWithStatistics) {
  Program program({"generate", "--chat", "Sort these numbers: 50, 49, 35.", "--json", "--temperature", "0"});
  ASSERT_EQ(program.status(), 0) << program.err();
  EXPECT_TRUE(program.out().starts_with("35, 49, 50\n")) << program.out();
  EXPECT_EQ(program.out().find('\x1b'), std::string::npos) << "no colours into a file";
  const Json json = program.last_json();
  EXPECT_EQ(json["requests"], 1);
  EXPECT_EQ(json["errors"], 0);
  for (const char* field : {"prompt_tokens", "completion_tokens", "wall_s", "decode_tok_s", "steps"}) {
    EXPECT_GT(json[field].get<double>(), 0) << field;
  }
  EXPECT_GT(json["acceptance_length"].get<double>(), 1);
  EXPECT_GT(json["ttft_ms"]["p50"].get<double>(), 0);
  EXPECT_GT(json["tpot_ms"]["p99"].get<double>(), 0);
}

TEST(Cli, FileWithABadLineExitsWithOneAndAnswersTheRest) {
  const TempFile input("in.jsonl",
                       "{\"id\": \"a\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}\n"
                       "{\"id\": \"b\", \"prompt_ids\": [999999]}\n"
                       "{\"id\": \"c\", \"prompt\": \"Hello\", \"max_tokens\": 3, \"ignore_eos\": true}\n");
  const TempFile output("out.jsonl");
  Program program({"generate", "--input", input.path(), "--output", output.path(), "--concurrency", "3", "--json"});
  ASSERT_EQ(program.status(), 1) << program.err();
  EXPECT_EQ(program.last_json()["errors"], 1);
  std::ifstream file(output.path());
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["finish_reason"], "stop");
  EXPECT_EQ(lines[0]["token_ids"].back(), 2) << "the stop token that ended it is among the ids";
  EXPECT_EQ(lines[1]["error"]["code"], "INVALID_ARGUMENT");
  EXPECT_EQ(lines[2]["finish_reason"], "length");
  EXPECT_EQ(lines[2]["token_ids"].size(), 3u);
}

TEST(Cli, ModelWithoutDrafterSaysSoOnce) {
  Program noted({"generate", "--model", "models/pocket", "--prompt", "a", "--max-tokens", "2"});
  EXPECT_EQ(noted.status(), 0);
  EXPECT_NE(noted.err().find("No drafter"), std::string::npos);
  Program silent({"generate", "--model", "models/pocket", "--draft", "none", "--prompt", "a", "--max-tokens", "2"});
  EXPECT_EQ(silent.status(), 0);
  EXPECT_EQ(silent.err().find("No drafter"), std::string::npos);
}

TEST(Cli, SpeculationDoesNotChangeTheText) {
  std::vector<std::string> arguments = {
      "generate", "--chat", "Tell me a story about a fox and a lantern.", "--temperature", "1", "--seed", "5"};
  Program drafted(arguments);
  arguments.insert(arguments.end(), {"--spec", "off"});
  Program plain(arguments);
  EXPECT_EQ(drafted.status(), 0);
  EXPECT_EQ(plain.status(), 0);
  EXPECT_GT(drafted.out().size(), 20u);
  EXPECT_EQ(drafted.out(), plain.out());
}

TEST(Cli, SignalsCancelAndStillPrintStatistics) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"prompt\": \"Once\", \"max_tokens\": 300, \"ignore_eos\": true}\n";
  const TempFile input("long.jsonl", lines);
  for (const auto& [signal, status] : {std::pair(SIGINT, 130), {SIGTERM, 143}}) {
    Program program({"generate", "--input", input.path(), "--json"});
    ASSERT_TRUE(program.wait_for_output("\"id\":1,"));
    program.signal(signal);
    EXPECT_EQ(program.status(), status) << program.err();
    const Json json = program.last_json();
    EXPECT_GE(json["requests"].get<int>(), 1);
    EXPECT_LT(json["requests"].get<int>(), 2000);
  }
}

TEST(Cli, ServeAnnouncesItselfAndDrainsOnSigterm) {
  Program program({"serve", "--port", "0"});
  ASSERT_TRUE(program.wait_for_output("Serving pocket on cpu at http://127.0.0.1:")) << program.err();
  program.signal(SIGTERM);
  EXPECT_EQ(program.status(), 0) << program.err();
}

}  // namespace
}  // namespace volley::apps
