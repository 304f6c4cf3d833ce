// A user's first commands: all ways to ask for help, a model without --model, and words of other programs.
#include <gtest/gtest.h>

#include <algorithm>

#include "apps/cli/parse_for_test.h"

namespace volley::apps {
namespace {

const std::optional<std::string>& model_of(const Command& command) {
  if (const auto* inspect = std::get_if<InspectCommand>(&command)) return inspect->model;
  if (const auto* generate = std::get_if<GenerateCommand>(&command)) return generate->engine.model;
  if (const auto* chat = std::get_if<ChatCommand>(&command)) return chat->engine.model;
  if (const auto* serve = std::get_if<ServeCommand>(&command)) return serve->engine.model;
  if (const auto* batch = std::get_if<BatchCommand>(&command)) return batch->engine.model;
  if (const auto* bench = std::get_if<BenchCommand>(&command)) return bench->engine.model;
  return std::get<CollectEnvCommand>(command).serve.engine.model;
}

TEST(CommandLine, TheModelNeedsNoName) {
  for (const char* words :
       {"serve some/model", "serve --port 1 some/model --draft auto", "chat some/model --temperature 0",
        "generate some/model --prompt a", "generate --prompt a some/model", "inspect some/model --json",
        "bench some/model --concurrency 1 8", "batch some/model --input a --output b", "collect-env some/model",
        "serve --model some/model"}) {
    const auto parsed = parse_words(words);
    ASSERT_TRUE(parsed.ok()) << words << ": " << parsed.error().message;
    EXPECT_EQ(model_of(*parsed), "some/model") << words;
  }
}

// Number of the line of `help` that begins with this option; 0: none.
size_t line_of(const std::string& help, const std::string& option) {
  const size_t at = help.find("\n  " + option);
  return at == std::string::npos ? 0 : 1 + static_cast<size_t>(std::count(help.begin(), help.begin() + at, '\n'));
}

std::string help_for(const std::string& words) {
  return command_of<PrintAndExit>(parse_words(words)).text;
}

TEST(CommandLine, HelpIsShownHoweverItIsAskedFor) {
  const std::string root = help_for("--help");
  EXPECT_NE(root.find("\n  serve "), std::string::npos) << root;
  for (const char* words : {"", "help", "-h", "help help", "help --help"}) EXPECT_EQ(help_for(words), root);
  const std::string serve = help_for("serve --help");
  EXPECT_NE(serve.find("volley serve [OPTIONS] [MODEL]"), std::string::npos) << serve;
  for (const char* words : {"help serve", "serve -h", "serve some/model --help", "help serve --port 1"}) {
    EXPECT_EQ(help_for(words), serve);
  }
  EXPECT_EQ(command_of<BenchServingCommand>(parse_words("help bench serving")).arguments,
            std::vector<std::string>{"--help"});
  EXPECT_TRUE(refusal(parse_words("help serv")).starts_with("\"serv\" is no command of volley (did you mean "));
}

TEST(CommandLine, HelpIsOfALengthThatIsRead) {
  const std::string generate = help_for("generate --help");
  EXPECT_GT(line_of(generate, "--prompt"), 0u);
  for (const char* later : {"--model", "--temperature", "--max-tokens", "-h,"}) {
    EXPECT_LT(line_of(generate, "--prompt"), line_of(generate, later)) << later;
  }
  const std::string chat = help_for("chat --help");
  EXPECT_LE(std::count(chat.begin(), chat.end(), '\n'), 100) << chat;
  for (const std::string command : {"chat", "generate", "serve", "bench", "batch", "collect-env"}) {
    const std::string some = help_for(command + " --help"), all = help_for(command + " --help-all");
    for (const char* internal : {"--page-size", "--kv-pages", "--grammar-memory-mb", "--state-snapshot-tokens"}) {
      EXPECT_EQ(line_of(some, internal), 0u) << command << internal;
      EXPECT_GT(line_of(all, internal), 0u) << command << internal;
    }
    EXPECT_NE(some.find("--help-all lists "), std::string::npos) << command;
    EXPECT_EQ(all.find("--help-all lists "), std::string::npos) << command;
    EXPECT_GT(line_of(all, "--model"), 0u) << "and the rest";
  }
}

// The command lines are those of llama.cpp, vLLM, SGLang and Ollama.
TEST(CommandLine, SpellingsOfOthersNameOurs) {
  for (const auto& [words, ours] : std::vector<std::pair<std::string, std::string>>{
           {"serve -m some/model", "-m is no option of volley serve: use --model DIR"},
           {"serve some/model -c 4096", "-c is no option of volley serve: use --max-model-len N"},
           {"serve some/model -ngl 99", "-ngl is no option of volley serve: all layers run on one device"},
           {"generate -p Hello", "-p is no option of volley generate: use --prompt TEXT"},
           {"chat -hf some/model", "-hf is no option of volley chat: use --model ORG/NAME"},
           {"serve --ctx-size=4096", "--ctx-size is no option of volley serve: use --max-model-len N"},
           {"chat --temp 0.5", "--temp is no option of volley chat: use --temperature X"},
           {"serve --trust-remote-code", "--trust-remote-code is no option of volley serve: code of a model's"},
           {"serve -np 4", "-np is no option of volley serve: use --max-num-seqs N"},
           {"generate --prompt a -n 4", "-n is no option of volley generate: use --max-tokens N"}}) {
    const std::string said = refusal(parse_words(words));
    EXPECT_TRUE(said.starts_with(ours)) << said;
  }
}

// Options of serving come before the engine's internals, and no line is wider than a terminal.
TEST(CommandLine, HelpOfServeBeginsWithServing) {
  const std::string help = help_for("serve --help-all");
  size_t before = 0;
  for (const char* option : {"--model ", "--port ", "--max-queue ", "--spec ", "--page-size "}) {
    const size_t at = help.find(option);
    ASSERT_NE(at, std::string::npos) << option;
    EXPECT_GT(at, before) << option;
    before = at;
  }
}

TEST(CommandLine, HelpNamesTheExitCodes) {
  for (const char* words : {"--help", "generate --help", "bench -h"}) {
    EXPECT_NE(help_for(words).find("130"), std::string::npos);
  }
}

}  // namespace
}  // namespace volley::apps
