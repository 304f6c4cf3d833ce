// Runs the completion scripts in their shells: a key press offers what the command line takes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "apps/cli/options.h"

namespace volley::apps {
namespace {

std::string script(const char* shell) {
  const char* arguments[] = {"volley", "completion", shell};
  const auto parsed = parse_command_line(3, arguments);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message;
  return parsed.ok() ? std::get<PrintAndExit>(*parsed).text : "";
}

class ScriptFile {
 public:
  explicit ScriptFile(const char* shell)
      : path_(testing::TempDir() + "volley_completion_" + std::to_string(getpid()) + "." + shell) {
    std::ofstream(path_) << script(shell);
  }
  ~ScriptFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Words that a command prints.
std::set<std::string> words_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string text;
  for (int c; pipe != nullptr && (c = std::fgetc(pipe)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Bash's offers for these words, the last of them half typed.
std::set<std::string> offers(const std::vector<std::string>& words) {
  const ScriptFile file("bash");
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  return words_of("bash -c 'set -u; . " + file.path() + "; COMP_WORDS=(volley \"$@\"); COMP_CWORD=$#; _volley; " +
                  R"(printf "%s\n" "${COMPREPLY[@]-}"' bash)" + line);
}

using WordSet = std::set<std::string>;

TEST(Completion, BashOffersCommandsOptionsAndValues) {
  EXPECT_EQ(offers({"ser"}), WordSet{"serve"});
  EXPECT_TRUE(offers({""}).contains("collect-env"));
  EXPECT_EQ(offers({"serve", "--max-num-"}), (WordSet{"--max-num-batched-tokens", "--max-num-seqs"}));
  EXPECT_EQ(offers({"serve", "--spec", ""}), (WordSet{"dflash", "off"}));
  EXPECT_EQ(offers({"serve", "--spec", "=", "o"}), WordSet{"off"});
  EXPECT_EQ(offers({"serve", "--spec", "="}), (WordSet{"dflash", "off"}));
  EXPECT_EQ(offers({"serve", "--verify", "f"}), WordSet{"full"});
  EXPECT_EQ(offers({"serve", "--port", ""}), WordSet{}) << "any number";
  EXPECT_EQ(offers({"inspect", "--spe"}), WordSet{}) << "it has none";
  EXPECT_EQ(offers({"generate", "--pro"}), (WordSet{"--profile", "--prompt"})) << "of a group, too";
  EXPECT_EQ(offers({"completion", "z"}), WordSet{"zsh"});
  EXPECT_EQ(offers({"serve", "--help"}), (WordSet{"--help", "--help-all"}));
  EXPECT_EQ(offers({"nothing", ""}), WordSet{});
}

TEST(Completion, BashOffersFilesAndFolders) {
  const std::string folder = testing::TempDir() + "volley_completion_files_" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/a_folder");
  std::ofstream(folder + "/a_file") << "";
  EXPECT_EQ(offers({"serve", "--config", folder + "/a"}), (WordSet{folder + "/a_file", folder + "/a_folder"}));
  EXPECT_EQ(offers({"serve", "--model", folder + "/a"}), (WordSet{folder + "/a_file", folder + "/a_folder"}));
  EXPECT_EQ(offers({"serve", folder + "/a"}), (WordSet{folder + "/a_file", folder + "/a_folder"}))
      << "a model needs no name";
  EXPECT_TRUE(offers({"serve", "--draft", "n"}).contains("none"));
  std::filesystem::remove_all(folder);
}

// Every script has every option, and each installed shell can read its own.
TEST(Completion, EveryShellKnowsEveryOption) {
  const char* arguments[] = {"volley", "serve", "--help-all"};
  const std::string help = std::get<PrintAndExit>(*parse_command_line(3, arguments)).text;
  std::istringstream lines(help);
  int options = 0;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string text = script(shell);
    lines.clear();
    lines.seekg(0);
    for (std::string line; std::getline(lines, line);) {
      const size_t begin = line.find("--");
      if (begin == std::string::npos || begin > 6) continue;
      const std::string name = line.substr(begin, line.find_first_of(" ,", begin) - begin);
      EXPECT_NE(text.find(std::string(shell) == "fish" ? "-l " + name.substr(2) + " " : name), std::string::npos)
          << shell << " " << name;
      ++options;
    }
    const ScriptFile file(shell);
    const std::string checks = std::string("command -v ") + shell + " >/dev/null || exit 0; " + shell + " -n ";
    EXPECT_EQ(std::system((checks + file.path()).c_str()), 0) << shell;
  }
  EXPECT_GT(options, 150);
}

}  // namespace
}  // namespace volley::apps
