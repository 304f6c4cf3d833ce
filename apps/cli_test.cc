// The program as a user meets it: exit statuses, what lands on stdout and stderr, Ctrl-C.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <thread>
#include <vector>

namespace volley::apps {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A run of the program with its output in files, so that nothing can block on a full pipe.
class Program {
 public:
  // `standard_output`: a file instead; empty: closed.
  explicit Program(const std::vector<std::string>& arguments, std::optional<std::string> standard_output = {}) {
    static int runs = 0;
    base_ = (fs::temp_directory_path() / ("volley_cli_" + std::to_string(getpid()) + "_" + std::to_string(runs++)))
                .string();
    pid_ = fork();
    if (pid_ == 0) {
      redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
      redirect(STDOUT_FILENO, standard_output.value_or("").empty() ? base_ + ".out" : *standard_output,
               O_WRONLY | O_CREAT | O_TRUNC);
      redirect(STDERR_FILENO, base_ + ".err", O_WRONLY | O_CREAT | O_TRUNC);
      if (standard_output && standard_output->empty()) close(STDOUT_FILENO);
      std::vector<char*> argv = {const_cast<char*>("volley")};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(VOLLEY_PROGRAM, argv.data());
      _exit(127);
    }
  }
  ~Program() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    fs::remove(base_ + ".out");
    fs::remove(base_ + ".err");
  }

  // Waits for the end; the exit status, or 1000 + the signal.
  int status() {
    int raw = 0;
    EXPECT_EQ(waitpid(pid_, &raw, 0), pid_);
    ended_ = true;
    return WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + WTERMSIG(raw);
  }
  void signal(int number) const { kill(pid_, number); }
  // Until stdout holds `text`, at most 300 s.
  bool wait_for_output(const std::string& text) const {
    for (int i = 0; i < 30'000; ++i) {
      if (out().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::string out() const { return read(base_ + ".out"); }
  std::string finished_out() {
    EXPECT_EQ(status(), 0) << err();
    return out();
  }
  std::string err() const { return read(base_ + ".err"); }
  // REQUIRES: status().
  Json last_json() const {
    EXPECT_TRUE(ended_);
    const std::string text = out();
    const size_t end = text.find_last_not_of('\n');
    return Json::parse(text.substr(text.rfind('\n', end) + 1, std::string::npos));
  }

 private:
  static void redirect(int fd, const std::string& path, int flags) {
    const int opened = open(path.c_str(), flags, 0600);
    if (opened < 0 || dup2(opened, fd) < 0) _exit(126);
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string base_;
  pid_t pid_ = -1;
  bool ended_ = false;
};

class TempFile {
 public:
  explicit TempFile(const std::string& name, const std::string& content = "")
      : path_((fs::temp_directory_path() / (std::to_string(getpid()) + "_" + name)).string()) {
    std::ofstream(path_) << content;
  }
  ~TempFile() { fs::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One sentence on stderr: one line that begins with the program's name.
void expect_one_error(const Program& program) {
  const std::string text = program.err();
  EXPECT_TRUE(text.starts_with("volley: ")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

// The pocket model in a folder of its own, whose files may be spoilt.
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

// Ready to paste into a report: facts, the options that count with their sources, and no secret.
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

// Variables reach the program, and one that nothing reads is named.
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
  const auto answer = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "--chat", "Tell me a story.", "--max-tokens", "24",
                                          "--seed",   "5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Program program(arguments);
    EXPECT_EQ(program.status(), 0) << program.err();
    return program.out();
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

// A program that answers one prompt, and another one once its weights were changed: a pipe keeps it running.
Ended with_weights_changed(const OwnModel& model, std::vector<std::string> options,
                           const std::function<void()>& change) {
  const TempFile pipe("changed_weights_pipe");
  fs::remove(pipe.path());
  EXPECT_EQ(mkfifo(pipe.path().c_str(), 0600), 0);
  const std::vector<std::string> arguments = {"generate", "--model",       model.path(), "--draft",
                                              "none",     "--input",       pipe.path(),  "--max-tokens",
                                              "2",        "--concurrency", "1"};
  options.insert(options.begin(), arguments.begin(), arguments.end());
  // For reading as well: opening it does not wait for the program, which may have ended at once.
  const int lines = open(pipe.path().c_str(), O_RDWR | O_CLOEXEC);
  Program program(options);
  const std::string first = "{\"prompt\": \"first\"}\n", second = "{\"prompt\": \"second, in other words\"}\n";
  EXPECT_EQ(write(lines, first.data(), first.size()), static_cast<ssize_t>(first.size()));
  EXPECT_TRUE(program.wait_for_output("\n")) << program.err();
  change();
  EXPECT_EQ(write(lines, second.data(), second.size()), static_cast<ssize_t>(second.size()));
  close(lines);
  const int status = program.status();
  return {status, program.out(), program.err()};
}

// Weights that somebody cuts short in place while they are mapped, as `cp` over them does: a sentence, not a bare
// signal.
TEST(Cli, WeightsCutShortWhileTheyAreMappedAreNamed) {
  const OwnModel model;
  const auto size = fs::file_size(model.weights());
  const Ended cut = with_weights_changed(model, {}, [&] {
    fs::resize_file(model.weights(), 0);
    fs::resize_file(model.weights(), size / 1000);
  });
  EXPECT_EQ(cut.status, 3);
  EXPECT_NE(cut.err.find(model.weights() + " was cut short while it was in use"), std::string::npos) << cut.err;
  fs::copy("models/pocket/model.safetensors", model.weights(), fs::copy_options::overwrite_existing);
  const Ended read = with_weights_changed(model, {"--no-mmap"}, [&] { fs::resize_file(model.weights(), 0); });
  EXPECT_EQ(read.status, 0) << read.err;
}

// Weights that are deleted, or replaced by a rename, stay what they were to the program that has them mapped.
TEST(Cli, WeightsReplacedWhileTheyAreMappedStay) {
  const OwnModel model;
  const Ended whole = with_weights_changed(model, {}, [] {});
  EXPECT_EQ(whole.status, 0) << whole.err;
  const Ended replaced = with_weights_changed(model, {}, [&] {
    const std::string other = model.weights() + ".new";
    std::ofstream(other) << "no weights";
    fs::rename(other, model.weights());
  });
  EXPECT_EQ(replaced.status, 0) << replaced.err;
  EXPECT_EQ(replaced.out, whole.out);
  fs::copy("models/pocket/model.safetensors", model.weights(), fs::copy_options::overwrite_existing);
  const Ended deleted = with_weights_changed(model, {}, [&] { fs::remove(model.weights()); });
  EXPECT_EQ(deleted.status, 0) << deleted.err;
  EXPECT_EQ(deleted.out, whole.out);
}

// A template that came with the weights must not keep the program from starting or ending.
TEST(Cli, AModelWhoseTemplateDoesNotEndIsRefused) {
  const OwnModel model;
  std::ofstream(model.path() + "/chat_template.jinja")
      << "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
  Program program({"generate", "--model", model.path(), "--draft", "none", "--prompt", "a"});
  EXPECT_EQ(program.status(), 3);
  expect_one_error(program);
  EXPECT_NE(program.err().find("chat_template.jinja"), std::string::npos) << program.err();
}

// What a bug would need to become more than a crash must stay closed in what is released.
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
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"generate"},
      {"generate", "--prompt", "a", "--bogus"},
      {"generate", "--prompt", "a", "--temperature", "-1"},
      {"generate", "--prompt", "a", "--draft", "none", "--spec", "dflash"},
      {"generate", "--prompt", "a", "--max-model-len", "99999999"},
      {"generate", "--prompt", "a", "--max-num-seqs", "8", "--max-num-batched-tokens", "4"},
      {"generate", "--input", "no/such/file.jsonl"},
      {"generate", "--prompt", "a", "--output", "/no/such/folder/file"},
      {"generate", "--prompt", "a", "--kv-pages", "1"},
      {"bench", "--simulate-acceptance", "geometric:0.5", "--spec", "off"},
      {"bench", "--verify", "auto", "--spec", "off"},
      {"generate", "--prompt", "a", "--draft", "none", "--verify", "3"},
  };
  for (const auto& arguments : wrong) {
    Program program(arguments);
    EXPECT_EQ(program.status(), 2) << program.err();
    expect_one_error(program);
    EXPECT_EQ(program.out(), "");
  }
}

// The second engine would wait ten minutes for nodes that ended with the first.
TEST(Cli, BenchOfSeveralNodesMeasuresOneMode) {
  const std::vector<std::string> nodes = {"bench", "--nnodes", "2", "--tensor-parallel-size", "2"};
  for (const std::vector<std::string>& several : std::vector<std::vector<std::string>>{
           {}, {"--spec", "off,dflash"}, {"--spec", "dflash", "--block-size", "4,8"}}) {
    std::vector<std::string> arguments = nodes;
    arguments.insert(arguments.end(), several.begin(), several.end());
    Program program(arguments);
    EXPECT_EQ(program.status(), 2);
    EXPECT_NE(program.err().find("with --nnodes run bench once for each"), std::string::npos) << program.err();
  }
  for (const char* one : {"off", "dflash"}) {
    std::vector<std::string> arguments = nodes;
    arguments.insert(arguments.end(), {"--spec", one});
    Program program(arguments);
    EXPECT_EQ(program.status(), 2);
    EXPECT_NE(program.err().find("needs --master-addr"), std::string::npos) << program.err();
  }
}

TEST(Cli, ModelsThatCannotBeLoadedExitWithThree) {
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"generate", "--model", "no/such/model", "--draft", "none", "--prompt", "a"},
           {"generate", "--draft", "no/such/draft", "--prompt", "a"},
           {"generate", "--model", "models/pocket-dflash", "--draft", "none", "--prompt", "a"},
           {"generate", "--draft", "models/shapes/qwen3-8b-dflash", "--prompt", "a"},
           {"inspect", "--model", "no/such/model"}}) {
    Program program(arguments);
    EXPECT_EQ(program.status(), 3) << program.err();
    expect_one_error(program);
  }
}

// A model folder whose files are the pocket's, but for those a test replaces.
class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name)
      : path_(fs::temp_directory_path() / ("volley_" + std::to_string(getpid()) + "_" + name)) {
    fs::create_directories(path_);
    for (const auto& file : fs::directory_iterator("models/" + name)) {
      fs::create_symlink(fs::absolute(file.path()), path_ / file.path().filename());
    }
  }
  ~ModelCopy() { fs::remove_all(path_); }
  fs::path operator/(const std::string& file) const { return path_ / file; }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(Cli, AFolderInPlaceOfTheWeightsIsTheModelsFault) {
  const ModelCopy model("pocket");
  fs::remove(model / "model.safetensors");
  fs::create_directory(model / "model.safetensors");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"generate", "--prompt", "a"}, {"bench"}, {"inspect"}, {"serve"}}) {
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--model", model.path(), "--draft", "none"});
    Program program(arguments);
    EXPECT_EQ(program.status(), 3) << command[0];
    expect_one_error(program);
  }
}

TEST(Cli, BenchMeasuresNothingIfALaterModeCannotStart) {
  Program program({"bench", "--draft", "models/shapes/qwen3-8b-dflash"});
  EXPECT_EQ(program.status(), 3);
  expect_one_error(program);
  EXPECT_EQ(program.out(), "");
}

TEST(Cli, InspectFindsTensorsThatAreNotThere) {
  const ModelCopy draft("pocket-dflash");
  fs::remove(draft / "model.safetensors");
  fs::create_symlink(fs::absolute("models/pocket/model.safetensors"), draft / "model.safetensors");
  Program program({"inspect", "--draft", draft.path()});
  EXPECT_EQ(program.status(), 3) << program.out();
  EXPECT_NE(program.out().find("fc.weight"), std::string::npos) << program.out();
  EXPECT_EQ(program.out().find("fits         yes"), std::string::npos);
  const ModelCopy target("pocket");
  fs::remove(target / "tokenizer.json");
  Program silent({"inspect", "--model", target.path()});
  EXPECT_EQ(silent.status(), 3);
  EXPECT_NE(silent.out().find("tokenizer.json"), std::string::npos) << silent.out();
}

TEST(Cli, AnOutputThatCannotBeWrittenExitsWithTwo) {
  for (const std::string place : {"/dev/full", ""}) {
    for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
             {"--help"},
             {"--version"},
             {"inspect"},
             {"inspect", "--json"},
             {"generate", "--prompt", "a", "--max-tokens", "2"},
             {"generate", "--input", "/dev/null", "--json"},
             {"demo"},
             {"bench", "--requests", "1", "--output-tokens", "2", "--concurrency", "1"}}) {
      Program program(arguments, place);
      EXPECT_EQ(program.status(), 2) << arguments[0] << " to '" << place << "': " << program.err();
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

TEST(Cli, BenchRunsDummyWeightsWithSimulatedAcceptance) {
  const TempFile output("bench.json");
  Program program({"bench", "--dummy-weights", "1", "--simulate-acceptance", "geometric:0.8", "--concurrency", "1,2",
                   "--requests", "2", "--prompt-tokens", "16", "--output-tokens", "32", "--output", output.path()});
  ASSERT_EQ(program.status(), 0) << program.err();
  std::ifstream file(output.path());
  const Json json = Json::parse(file);
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["errors"], 0);
    EXPECT_EQ(row["completion_tokens"], 2 * 32);
    EXPECT_GT(row["machine"]["read_gb_s"].get<double>(), 0);
    EXPECT_GT(row["floor"]["bytes"].get<double>(), 0);
  }
  EXPECT_NE(program.out().find("tok/s"), std::string::npos);
}

TEST(Cli, BenchSaysThatSpeculationChangedNothing) {
  Program program({"bench", "--concurrency", "1,3", "--requests", "3", "--output-tokens", "16", "--json"});
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const Json& row : json["rows"]) EXPECT_EQ(row["same_tokens"], true);
}

TEST(Cli, BenchHoldsPoliciesAgainstEachOther) {
  Program program({"bench", "--concurrency", "1,3", "--requests", "3", "--output-tokens", "16", "--verify",
                   "auto,full,3", "--repeat", "2", "--json"});
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["rows"].size(), 2u * 2u * (1u + 3u));
  for (const Json& row : json["rows"]) {
    EXPECT_EQ(row["same_tokens"], true) << "whatever the policy";
    EXPECT_EQ(row["completion_tokens"], 3 * 16);
    if (row["verify"] == "3") {
      EXPECT_LE(row["acceptance_length"].get<double>(), 4);
    }
  }
  // All take turns, the engine without a drafter too.
  for (int i = 0; i < 16; ++i) EXPECT_EQ(json["rows"][i]["repeat"], i / 4 % 2) << i;
  for (int i = 0; i < 16; i += 4) {
    int off = 0;
    for (int k = 0; k < 4; ++k) off += json["rows"][i + k]["spec"] == "off" ? 1 : 0;
    EXPECT_EQ(off, 1) << i;
  }
  EXPECT_NE(program.out().find("auto against the best of the others"), std::string::npos) << program.out();
}

TEST(Cli, BenchMeasuresRoundsOfEveryPolicyAndLoad) {
  Program program({"bench",
                   "--dummy-weights",
                   "1",
                   "--simulate-acceptance",
                   "geometric:0.9",
                   "--simulate-acceptance",
                   "geometric:0.8,0",
                   "--rounds",
                   "20",
                   "--warm-rounds",
                   "4",
                   "--repeat",
                   "2",
                   "--verify",
                   "auto",
                   "0",
                   "15",
                   "--concurrency",
                   "1,2",
                   "--prompt-tokens",
                   "16",
                   "--spec",
                   "dflash,off",
                   "--json"});
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  ASSERT_EQ(json["runs"].size(), 2u * 2u * 2u * 4u)
      << "loads, concurrencies, repeats; auto, 0, 15, off, which take turns";
  EXPECT_EQ(json["runs"][3]["mode"], "off");
  EXPECT_EQ(json["runs"][4]["repeat"], 1);
  for (const Json& run : json["runs"]) {
    const double steps = run["steps"].get<double>(), requests = run["concurrency"].get<double>();
    const double tokens = run["tokens"].get<double>() / steps / requests;
    EXPECT_GE(steps, 20) << run;
    EXPECT_GT(run["tok_s"].get<double>(), 0) << run;
    if (run["mode"] == "0" || run["mode"] == "off") {
      EXPECT_NEAR(tokens, 1, 1e-6) << run;
    }
    if (run["mode"] != "15") continue;
    EXPECT_DOUBLE_EQ(run["draft"].get<double>(), 15) << run;
    EXPECT_DOUBLE_EQ(run["rows"].get<double>(), 16 * requests) << run;
    const auto expected = [](double p) { return p == 0 ? 1.0 : (1 - std::pow(p, 16)) / (1 - p); };
    const bool mixed = run["load"] == "geometric:0.8,0" && requests == 2;
    const double first = run["load"] == "geometric:0.9" ? expected(0.9) : expected(0.8);
    EXPECT_NEAR(tokens, mixed ? (first + 1) / 2 : first, 1e-4) << run;
  }
  ASSERT_EQ(json["cells"].size(), 4u);
  for (const Json& cell : json["cells"]) EXPECT_EQ(cell["median_tok_s"].size(), 4u) << "auto, 0, 15, off";
}

TEST(Cli, BenchTracesLoadsThatFollowOneAnother) {
  const TempFile trace("trace.jsonl");
  Program program({"bench", "--dummy-weights", "1", "--simulate-acceptance", "geometric:0.9", "--simulate-acceptance",
                   "geometric:0", "--rounds", "20", "--concurrency-schedule", "1,3,1", "--prompt-tokens", "16",
                   "--trace", trace.path()});
  ASSERT_EQ(program.status(), 0) << program.err();
  std::ifstream file(trace.path());
  std::map<int, int64_t> steps;  // by load
  int64_t last = 0;
  for (std::string line; std::getline(file, line);) {
    const Json sample = Json::parse(line);
    EXPECT_GT(sample["step"].get<int64_t>(), last);
    EXPECT_LE(sample["running"].get<int>(), sample["load"] == 1 ? 3 : 1);
    last = sample["step"].get<int64_t>();
    steps[sample["load"].get<int>()] += sample["steps"].get<int64_t>();
  }
  ASSERT_EQ(steps.size(), 3u);
  for (const auto& [load, count] : steps) EXPECT_GE(count, 20) << load;
}

TEST(Cli, BenchRoundsThatDoNotFitAreAnError) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--max-model-len", "64"}, {"--max-num-seqs", "1"}, {"--verify", "99"}}) {
    std::vector<std::string> arguments = {"bench",
                                          "--dummy-weights",
                                          "1",
                                          "--rounds",
                                          "300",
                                          "--prompt-tokens",
                                          "16",
                                          "--simulate-acceptance",
                                          "geometric:0.9",
                                          "--repeat",
                                          "1",
                                          "--concurrency",
                                          "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Program program(arguments);
    EXPECT_EQ(program.status(), 2) << program.err();
    EXPECT_NE(program.err().find(more[0]), std::string::npos) << program.err();
  }
}

TEST(Cli, InspectSaysHowACheckpointIsQuantised) {
  Program program({"inspect", "--model", "tests/data/quantised/fp8_next"});
  EXPECT_EQ(program.status(), 3) << "it has no tokenizer";
  EXPECT_NE(program.out().find("linear attention in 1, 2 of 3 experts of 128 and a shared one of 128"),
            std::string::npos);
  EXPECT_NE(program.out().find("fp8 in blocks of 128x128"), std::string::npos) << program.out();
  EXPECT_NE(program.out().find("48, all there"), std::string::npos) << program.out();
}

// What `inspect --json` says of memory. ranks: 0: nothing is said of them.
Json inspected_memory(std::vector<std::string> arguments, int ranks) {
  arguments.insert(arguments.begin(), {"inspect", "--json"});
  if (ranks > 0) arguments.insert(arguments.end(), {"--tensor-parallel-size", std::to_string(ranks)});
  Program program(arguments);
  EXPECT_NE(program.status(), 2) << program.err();  // 3 where there is no tokenizer
  return program.last_json()["memory"];
}

// Protects: the plan of ranks. They divide matrices, and each has all of the rest, which is embeddings and norms. Whole
// on each are also the drafter's projection of features, and KV heads of which there are fewer than ranks.
TEST(Cli, InspectSaysWhatARankTakes) {
  struct Case {
    std::vector<std::string> models;
    int ranks;
    int64_t more;  // bytes of matrices that are there more than once
  };
  const std::vector<Case> cases = {
      {{}, 2, int64_t{2} * 256 * 256 * 2},  // features of two layers to one width, bf16
      // K and V of two heads of 16 in two layers, once more
      {{"--model", "tests/data/targets/plain"}, 4, int64_t{2} * 2 * 16 * 64 * 2 * 2},
  };
  for (const auto& [models, ranks, more] : cases) {
    const Json whole = inspected_memory(models, 0), divided = inspected_memory(models, ranks);
    ASSERT_EQ(whole["ranks"].size(), 1u);
    EXPECT_EQ(whole["ranks"][0]["weight_bytes"], whole["weight_bytes"]);
    ASSERT_EQ(divided["tensor_parallel_size"], ranks);
    ASSERT_EQ(divided["ranks"].size(), static_cast<size_t>(ranks));
    int64_t weights = 0, kv = 0;
    for (const Json& rank : divided["ranks"]) {
      EXPECT_LT(rank["weight_bytes"], whole["weight_bytes"]);
      weights += rank["weight_bytes"].get<int64_t>();
      kv += rank["kv_bytes_per_token"].get<int64_t>();
    }
    EXPECT_EQ(weights, divided["weight_bytes"]);
    EXPECT_EQ(kv, divided["kv_bytes_per_token"]);
    const auto matrices = [](const Json& memory) { return memory["matrix_bytes"]["bfloat16"].get<int64_t>(); };
    const int64_t rest = whole["weight_bytes"].get<int64_t>() - matrices(whole);
    EXPECT_EQ(matrices(divided), matrices(whole) + more);
    EXPECT_EQ(weights, matrices(divided) + ranks * rest);
  }
}

TEST(Cli, InspectSaysWhichExpertsARankHas) {
  const std::vector<std::string> arguments = {
      "inspect", "--model", "tests/data/targets/moe_single", "--tensor-parallel-size", "2", "--enable-expert-parallel"};
  Program text(arguments);
  EXPECT_EQ(text.status(), 3) << "it has no tokenizer";
  EXPECT_NE(text.out().find("experts      rank 0: 0 to 2, 1: 3 to 5\n"), std::string::npos) << text.out();
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  Program program(as_json);
  EXPECT_EQ(program.status(), 3);
  const Json json = program.last_json();
  const Json& ranks = json["memory"]["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1]["first_expert"], 3);
  EXPECT_EQ(ranks[1]["experts"], 3);
}

TEST(Cli, InspectSaysWhichExpertsAReplicaHas) {
  const std::vector<std::string> arguments = {"inspect",
                                              "--model",
                                              "tests/data/targets/hybrid_experts",
                                              "--data-parallel-size",
                                              "2",
                                              "--enable-expert-parallel"};
  Program text(arguments);
  EXPECT_EQ(text.status(), 3) << "it has no tokenizer";
  EXPECT_NE(text.out().find("experts      replica 0: 0 to 2, 1: 3 to 6\n"), std::string::npos) << text.out();
  EXPECT_NE(text.out().find("a replica    of 2: "), std::string::npos) << text.out();
  std::vector<std::string> as_json = arguments;
  as_json.push_back("--json");
  Program program(as_json);
  EXPECT_EQ(program.status(), 3);
  const Json memory = program.last_json()["memory"];
  EXPECT_EQ(memory["data_parallel_size"], 2);
  EXPECT_GT(memory["shared_weight_bytes"], 0);
  ASSERT_EQ(memory["replicas"].size(), 2u);
  EXPECT_EQ(memory["replicas"][1]["first_expert"], 3);
  EXPECT_EQ(memory["replicas"][1]["experts"], 4);
}

TEST(Cli, InspectDescribesThePair) {
  Program program({"inspect", "--json"});
  ASSERT_EQ(program.status(), 0) << program.err();
  const Json json = program.last_json();
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["target"]["architecture"], "Qwen3ForCausalLM");
  EXPECT_EQ(json["target"]["weights"], "bfloat16");
  EXPECT_EQ(json["draft"]["block_size"], 16);
  // 2 (K and V) x 2 heads x 64 x 2 bytes x (8 + 2 layers)
  EXPECT_EQ(json["memory"]["kv_bytes_per_token"], 5120);
  EXPECT_EQ(json["memory"]["matrix_bytes"].size(), 1u);
  EXPECT_GT(json["memory"]["matrix_bytes"]["bfloat16"], 0);
  Program float32({"inspect", "--json", "--dtype", "float32"});
  ASSERT_EQ(float32.status(), 0) << float32.err();
  EXPECT_EQ(float32.last_json()["memory"]["kv_bytes_per_token"], 10240);
  EXPECT_EQ(float32.last_json()["memory"]["matrix_bytes"], json["memory"]["matrix_bytes"])
      << "they are bf16 in the file";
  Program misfit({"inspect", "--draft", "models/shapes/qwen3-8b-dflash"});
  EXPECT_EQ(misfit.status(), 3);
  EXPECT_NE(misfit.out().find("fits"), std::string::npos);
}

}  // namespace
}  // namespace volley::apps
