// Options from variables and files: the order of sources, and errors that name the place.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "apps/cli/parse_for_test.h"

namespace volley::apps {
namespace {

class OptionSources : public testing::Test {
 protected:
  OptionSources()
      : path_((std::filesystem::temp_directory_path() / ("volley_sources_" + std::to_string(getpid()) + ".yaml"))
                  .string()) {}
  ~OptionSources() override { std::filesystem::remove(path_); }

  Result<Command> parse(std::vector<std::string> words, const Variables& variables = {}, const std::string& file = "") {
    if (!file.empty()) {
      std::ofstream(path_) << file;
      words.insert(words.end(), {"--config", path_});
    }
    std::vector<const char*> arguments = {"volley"};
    for (const std::string& word : words) arguments.push_back(word.c_str());
    return parse_command_line(static_cast<int>(arguments.size()), arguments.data(), variables, &warnings_);
  }
  ServeCommand serve(const std::vector<std::string>& options, const Variables& variables,
                     const std::string& file = "") {
    std::vector<std::string> words = {"serve"};
    words.insert(words.end(), options.begin(), options.end());
    return command_of<ServeCommand>(parse(words, variables, file));
  }
  // Shortens the file's path to FILE.
  std::string refusal(const std::vector<std::string>& words, const Variables& variables, const std::string& file = "") {
    std::string message = apps::refusal(parse(words, variables, file));
    for (size_t at; (at = message.find(path_)) != std::string::npos;) message.replace(at, path_.size(), "FILE");
    return message;
  }

  const std::string path_;
  std::vector<std::string> warnings_;
};

TEST_F(OptionSources, TheCommandLineCountsBeforeAVariableBeforeTheFile) {
  const std::string file = "max-num-seqs: 3\n";
  const Variables variables = {{"VOLLEY_MAX_NUM_SEQS", "5"}};
  EXPECT_EQ(serve({}, {}, file).engine.base.max_num_seqs, 3);
  EXPECT_EQ(serve({}, variables, file).engine.base.max_num_seqs, 5);
  EXPECT_EQ(serve({"--max-num-seqs", "7"}, variables, file).engine.base.max_num_seqs, 7);
  EXPECT_EQ(serve({"--max-running-requests=7"}, variables, file).engine.base.max_num_seqs, 7) << "by another name";
}

TEST_F(OptionSources, ANoOfAStrongerSourceCounts) {
  EXPECT_FALSE(serve({}, {{"VOLLEY_LOG_PROMPTS", "false"}}, "log-prompts: true\n").server.log_prompts);
  EXPECT_TRUE(serve({}, {{"VOLLEY_NO_PREFIX_CACHE", "0"}}, "enable-prefix-caching: no\n").engine.base.prefix_cache);
  EXPECT_FALSE(serve({}, {{"VOLLEY_ENABLE_PREFIX_CACHING", "0"}}).engine.base.prefix_cache) << "as in a file";
  EXPECT_FALSE(serve({}, {{"VOLLEY_PREFIX_CACHE", "0"}}).engine.base.prefix_cache);
  EXPECT_FALSE(serve({}, {{"VOLLEY_ENABLE_PREFIX_CACHING", "0"}}, "no-prefix-cache: no\n").engine.base.prefix_cache);
  EXPECT_TRUE(serve({}, {{"VOLLEY_ENABLE_PREFIX_CACHING", "1"}}, "no-prefix-cache: yes\n").engine.base.prefix_cache);
  EXPECT_EQ(warnings_, std::vector<std::string>{});
  serve({}, {{"VOLLEY_ENABLE_CHUNKED_PREFILL", "false"}});
  EXPECT_EQ(warnings_, std::vector<std::string>{"VOLLEY_ENABLE_CHUNKED_PREFILL says no to what is always on"});
}

TEST_F(OptionSources, AFileAsVllmUsersWriteIt) {
  const ServeCommand command = serve({}, {}, R"(
model: org/name        # a comment
served_model_name: [one, "two"]
max-model-len: 4096
gpu-memory-utilization: 0.5
enable-prefix-caching: false
enable-chunked-prefill: true
log-prompts: yes
no-mmap: false
spec: off
allowed-hosts:
  - a.example
  - b.example
request-timeout: 7
)");
  EXPECT_EQ(command.engine.model, "org/name");
  EXPECT_EQ(command.server.served_model_names, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(command.engine.base.max_model_len, 4096);
  EXPECT_EQ(command.engine.base.memory_fraction, 0.5);
  EXPECT_FALSE(command.engine.base.prefix_cache);
  EXPECT_TRUE(command.server.log_prompts);
  EXPECT_TRUE(command.engine.base.mmap);
  EXPECT_EQ(command.engine.speculation, Speculation::kOff);
  EXPECT_EQ(command.server.allowed_hosts, (std::vector<std::string>{"a.example", "b.example"}));
  EXPECT_EQ(command.server.request_timeout, std::chrono::seconds(7));
}

TEST_F(OptionSources, Variables) {
  const ServeCommand command = serve({}, {{"VOLLEY_MODEL", "m"},
                                          {"VOLLEY_DRAFT", ""},
                                          {"VOLLEY_SERVED_MODEL_NAME", "a, b"},
                                          {"VOLLEY_CORS_ORIGIN", R"(["https://a,b"])"},
                                          {"VOLLEY_NO_GRAPHS", "1"},
                                          {"VOLLEY_PROFILE", "0"},
                                          {"VOLLEY_CONTEXT_LENGTH", "99"},
                                          {"VOLLEY_PORT", "tcp://10.0.0.1:8000"},
                                          {"VOLLEY_PORT_8000_TCP_ADDR", "10.0.0.1"},
                                          {"VOLLEY_SERVICE_HOST", "10.0.0.1"},
                                          {"VOLLEY_API_KEYS", "k"},
                                          {"VOLLEY_CHAT", "another subcommand's"}});
  EXPECT_EQ(command.engine.model, "m");
  EXPECT_FALSE(command.engine.draft) << "an empty variable is none";
  EXPECT_EQ(command.server.served_model_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(command.server.cors_origins, std::vector<std::string>{"https://a,b"});
  EXPECT_FALSE(command.engine.base.graphs);
  EXPECT_FALSE(command.engine.base.profile);
  EXPECT_EQ(command.engine.base.max_model_len, 99);
  EXPECT_EQ(command.server.port, 8000) << "that variable is Kubernetes' word for a service called volley";
  EXPECT_EQ(warnings_, std::vector<std::string>{});
}

TEST_F(OptionSources, WarnsOfAVariableThatNothingReads) {
  serve({}, {{"VOLLEY_MAX_NUM_SEQ", "1"}, {"VOLLEY_XYZZY", "1"}});
  EXPECT_EQ(warnings_, (std::vector<std::string>{
                           "nothing reads the variable VOLLEY_MAX_NUM_SEQ (did you mean VOLLEY_MAX_NUM_SEQS?)",
                           "nothing reads the variable VOLLEY_XYZZY"}));
}

TEST_F(OptionSources, AMistakeNamesItsPlace) {
  const auto of_file = [this](const std::string& file) { return refusal({"serve"}, {}, file); };
  EXPECT_EQ(of_file("port: 80\n\nmax-num-seq: 3\n"),
            "FILE:3: max-num-seq is no option of volley serve that a file can set (did you mean max-num-seqs?); see "
            "volley serve --help");
  EXPECT_EQ(of_file("port: 80\nmax-num-seqs: 0\n"),
            "FILE:2: max-num-seqs: 0 is not a whole number from 1 to 2147483647; see volley serve --help");
  EXPECT_EQ(of_file("port: [1, 2]\n"), "FILE:1: port takes one value, not a list");
  EXPECT_EQ(of_file("port: {a: 1}\n"), "FILE:1: port takes a value or a list, not a mapping");
  EXPECT_EQ(of_file("port:\n"), "FILE:1: port has no value: give one, or leave the line out");
  EXPECT_EQ(of_file("port: 1\nport: 2\n"), "FILE:2: port stands in line 1 too");
  EXPECT_EQ(of_file("model: a\nmodel-path: b\n"), "FILE:2: model-path sets --model a second time");
  EXPECT_EQ(of_file("log-prompts: maybe\n"), "FILE:1: log-prompts is either true or false");
  EXPECT_EQ(of_file("enable-chunked-prefill: false\n"),
            "FILE:1: enable-chunked-prefill is always on: leave the line out");
  EXPECT_EQ(of_file("- a\n"), "FILE:1: it must be one mapping of option names to values, such as \"port: 8000\"");
  EXPECT_TRUE(of_file("a: [\n").starts_with("FILE:2: it is not YAML: ")) << of_file("a: [\n");
  EXPECT_TRUE(of_file("config: x\n").starts_with("FILE:1: config is no option of volley serve that a file can set"));
  EXPECT_NE(refusal({"serve", "--config", "/no/such/file"}, {}).find("/no/such/file"), std::string::npos);
  EXPECT_EQ(refusal({"serve"}, {{"VOLLEY_PORT", "x"}}),
            "VOLLEY_PORT: x is not a port from 0 to 65535; see volley serve --help");
  EXPECT_EQ(refusal({"serve"}, {{"VOLLEY_LOG_PROMPTS", "2"}}),
            "VOLLEY_LOG_PROMPTS: VOLLEY_LOG_PROMPTS is either true or false");
}

// A wrong value of a weaker source does not matter, and --help needs no right ones.
TEST_F(OptionSources, OnlyWhatCountsIsChecked) {
  EXPECT_EQ(serve({"--port", "1"}, {{"VOLLEY_PORT", "x"}}).server.port, 1);
  EXPECT_TRUE(std::holds_alternative<PrintAndExit>(*parse({"serve", "--help"}, {{"VOLLEY_PORT", "x"}})));
}

TEST_F(OptionSources, OfOptionsThatExcludeOneAnotherTheStrongestSourceCounts) {
  const auto of_line =
      command_of<GenerateCommand>(parse({"generate", "--chat", "hi"}, {{"VOLLEY_PROMPT", "p"}}, "input: f\n"));
  EXPECT_EQ(of_line.chat, "hi");
  EXPECT_FALSE(of_line.prompt || of_line.input);
  const auto of_variable = command_of<GenerateCommand>(
      parse({"generate"}, {{"VOLLEY_PROMPT", "-x = [y]"}, {"VOLLEY_STOP", R"(["a,b", "c"])"}}));
  EXPECT_EQ(of_variable.prompt, "-x = [y]");
  EXPECT_EQ(of_variable.settings.stop, (std::vector<std::string>{"a,b", "c"}));
  EXPECT_FALSE(parse({"generate"}, {}, "prompt: a\nchat: b\n").ok());
}

// SGLang's option stands for two of ours; the strongest source sets each.
TEST_F(OptionSources, AnAddressWithItsPortOverridesNoStrongerSource) {
  const auto place = [&](const std::vector<std::string>& words, const Variables& variables, const std::string& file) {
    const ServeCommand command = serve(words, variables, file);
    return command.engine.base.master_addr + " " + std::to_string(command.engine.base.master_port);
  };
  const Variables both = {{"VOLLEY_DIST_INIT_ADDR", "b:2"}};
  EXPECT_EQ(place({}, {}, "dist-init-addr: c:3\n"), "c 3");
  EXPECT_EQ(place({}, both, "dist-init-addr: c:3\n"), "b 2");
  EXPECT_EQ(place({"--master-addr", "a", "--master-port", "1"}, both, ""), "a 1");
  EXPECT_EQ(place({"--master-addr", "a"}, both, "dist-init-addr: c:3\n"), "a 2");
  EXPECT_EQ(place({"--dist-init-addr", "[::1]:1"}, {{"VOLLEY_MASTER_ADDR", "b"}}, "master-port: 3\n"), "::1 1");
  EXPECT_EQ(place({}, {{"VOLLEY_MASTER_ADDR", "b"}}, "dist-init-addr: '[::1]:3'\n"), "b 3");
  EXPECT_EQ(refusal({"serve"}, {}, "dist-init-addr: c:3\nmaster-port: 4\n"),
            "FILE:2: master-port sets --master-port a second time");
  EXPECT_EQ(refusal({"serve"}, {{"VOLLEY_DIST_INIT_ADDR", "b:2"}, {"VOLLEY_MASTER_ADDR", "b"}}),
            "VOLLEY_MASTER_ADDR: VOLLEY_MASTER_ADDR sets --master-addr a second time");
  EXPECT_EQ(refusal({"serve"}, {}, "dist-init-addr: c\n"),
            "FILE:1: dist-init-addr: c is not an address and a port, as in gpu-1:29501; see volley serve --help");
}

TEST_F(OptionSources, TextsKeepTheirBrackets) {
  const auto stops = [this](const std::string& variable, const std::string& file) {
    Variables variables;
    if (!variable.empty()) variables.emplace_back("VOLLEY_STOP", variable);
    return *command_of<GenerateCommand>(parse({"generate", "--prompt", "p"}, variables, file)).settings.stop;
  };
  EXPECT_EQ(stops("[/INST]", ""), std::vector<std::string>{"[/INST]"});
  EXPECT_EQ(stops("[INST], [/INST]", ""), (std::vector<std::string>{"[INST]", "[/INST]"}));
  EXPECT_EQ(stops(R"(["[a, b]", "]["])", ""), (std::vector<std::string>{"[a, b]", "]["}));
  EXPECT_EQ(stops("", "stop: '[/INST]'\n"), std::vector<std::string>{"[/INST]"});
  EXPECT_EQ(stops("", "stop: ['[a, b]', x]\n"), (std::vector<std::string>{"[a, b]", "x"}));
  EXPECT_EQ(serve({}, {{"VOLLEY_API_KEY", "[k]"}}).api_keys, std::vector<std::string>{"[k]"});
  EXPECT_EQ(serve({}, {{"VOLLEY_SERVED_MODEL_NAME", "[m]"}}).server.served_model_names,
            std::vector<std::string>{"[m]"});
  EXPECT_EQ(serve({}, {{"VOLLEY_ALLOWED_HOSTS", R"(["a.example", "[::1]"])"}}).server.allowed_hosts,
            (std::vector<std::string>{"a.example", "[::1]"}));
  EXPECT_EQ(serve({}, {}, "allowed-hosts: ['[::1]', '[::2]']\n").server.allowed_hosts,
            (std::vector<std::string>{"[::1]", "[::2]"}));
}

TEST_F(OptionSources, RequiredOptionsMayComeFromAnywhere) {
  EXPECT_EQ(command_of<BatchCommand>(parse({"batch", "--output", "b"}, {}, "input: a\n")).input, "a");
  EXPECT_FALSE(parse({"batch"}, {{"VOLLEY_OUTPUT", "b"}}).ok());
}

// A server with an empty key would be open to all.
TEST_F(OptionSources, AnEmptyKeyIsRefused) {
  EXPECT_NE(refusal({"serve"}, {{"VOLLEY_API_KEY", ""}}).find("VOLLEY_API_KEY is set and holds no API key"),
            std::string::npos);
}

// A variable may be there for a server.
TEST_F(OptionSources, ChatPassesOverVariablesThatAreNotForIt) {
  EXPECT_TRUE(parse({"chat", "--url", "http://x"}, {{"VOLLEY_THREADS", "2"}}).ok());
  EXPECT_TRUE(parse({"chat"}, {{"VOLLEY_API_KEY", "k"}}).ok());
  EXPECT_FALSE(parse({"chat", "--url", "http://x"}, {}, "threads: 2\n").ok());
}

}  // namespace
}  // namespace volley::apps
