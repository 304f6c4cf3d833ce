// Tab completion in a chat.
#include "apps/chat/chat_commands.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace volley::apps {
namespace {

using Words = std::vector<std::string>;

Words offered(std::string_view line) {
  return complete_chat_line(line).words;
}

TEST(ChatCommands, CommandsAndTheirWords) {
  EXPECT_EQ(offered("/s"), (Words{"/save", "/set", "/stats", "/system"}));
  EXPECT_EQ(offered("/sy"), Words{"/system"});
  EXPECT_EQ(offered("/x"), Words{});
  EXPECT_EQ(offered("/set top"), (Words{"top_k", "top_p"}));
  EXPECT_EQ(offered("/set thinking o"), (Words{"off", "on"}));
  EXPECT_EQ(offered("/set temperature "), Words{"default"});
  EXPECT_EQ(offered("/stats o"), (Words{"off", "on"}));
  EXPECT_EQ(offered("/system n"), Words{"none"});
  EXPECT_EQ(offered("/clear "), Words{});
  EXPECT_EQ(offered("a /s"), Words{}) << "a message";
  EXPECT_EQ(offered(""), Words{});
  EXPECT_EQ(complete_chat_line("/set top").begin, 5u);
  EXPECT_EQ(complete_chat_line("/set thinking o").begin, 14u);
}

TEST(ChatCommands, FilesForThoseThatTakeOne) {
  namespace fs = std::filesystem;
  const fs::path folder = testing::TempDir() + "volley_chat_commands_" + std::to_string(getpid());
  fs::create_directories(folder / "a b");
  std::ofstream(folder / "a.json") << "";
  std::ofstream(folder / ".hidden") << "";
  const std::string at = folder.string() + "/";
  EXPECT_EQ(offered("/load " + at), (Words{at + "a b/", at + "a.json"}));
  EXPECT_EQ(offered("/save " + at + "a."), Words{at + "a.json"});
  EXPECT_EQ(offered("/save " + at + "a b"), Words{at + "a b/"}) << "a path may hold spaces";
  EXPECT_EQ(offered("/load " + at + "."), Words{at + ".hidden"});
  EXPECT_EQ(offered("/load " + at + "nothing/"), Words{});
  fs::remove_all(folder);
}

TEST(ChatCommands, HelpNamesThemAll) {
  const std::string help = chat_help();
  for (const ChatCommandName& command : chat_commands()) {
    EXPECT_NE(help.find(command.name), std::string::npos) << command.name;
  }
}

}  // namespace
}  // namespace volley::apps
