// The result of loading the files of a model's folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "text/template_file.h"
#include "text/test_model.h"
#include "text/text.h"

namespace volley::text {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::string& source) {
  const ModelDir dir({{"chat_template.jinja", source}});
  const auto chat = ChatTemplate::load(dir.path());
  return chat.ok() ? "loaded" : chat.error().message;
}

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::string render(const std::string& dir, std::string_view tools) {
  const auto chat = ChatTemplate::load(dir);
  if (!chat.ok()) return chat.error().message;
  const auto text = (*chat)->render({.messages_json = "[]", .tools_json = std::string(tools)});
  return text.ok() ? *text : text.error().message;
}

// The engine parses, and frees, nested constructs by recursion. A tag must not escape the count by looking like another
// construct.
TEST(ChatTemplateLoad, WhatNestsTooDeeplyIsRefused) {
  const std::string deep[] = {
      repeated("-", 10'000) + "1",   repeated("not ", 10'000) + "1",         "1" + repeated("+1", 10'000),
      "1" + repeated("**1", 10'000), "1" + repeated("|abs", 10'000),         "a" + repeated("()", 10'000),
      "a" + repeated(".a", 10'000),  "1" + repeated(" if 1 else 1", 10'000), "[" + repeated("1,", 10'000) + "]",
  };
  for (const std::string& inner : deep) {
    for (const std::string hidden : {"", "{{ '{#' }}", "{# {{ #}", "{% raw %}{{{% endraw %}", "{{ \"'\" }}", "{#' #}",
                                     "{{ '\\'{% raw %}' }}", "{% set a = '{{' %}"}) {
      EXPECT_THAT(refusal(hidden + "{{ " + inner + " }}"), HasSubstr("a tag of more than 2000 words and signs"))
          << hidden;
    }
    EXPECT_THAT(refusal("{% if " + inner + " %}{% endif %}"), HasSubstr("more than 2000 words and signs"));
  }
  EXPECT_THAT(refusal("{% set " + repeated("(", 10'000) + "a"), HasSubstr("more than 2000 words and signs"));
  EXPECT_THAT(refusal("{% if a %}" + repeated("{% elif a %}", 20'000) + "{% endif %}"),
              HasSubstr("more than 2000 branches"));
  EXPECT_THAT(refusal(repeated("{% if a %}", 20'000)), HasSubstr("does not compile"));
  EXPECT_THAT(refusal(repeated("{% for a in b %}", 15'000)), HasSubstr("does not compile"));
  EXPECT_THAT(refusal(repeated("{% call a() %}", 15'000)), HasSubstr("does not compile"));
  for (const char* brackets : {"[", "(", "{1:", "a(", "a["}) {
    EXPECT_THAT(refusal("{{ " + repeated(brackets, 600)), HasSubstr("does not compile")) << brackets;
  }
  EXPECT_THAT(refusal("{{ " + repeated("- ", 1'900) + "1 }}"), "loaded");
  EXPECT_THAT(refusal("{{ '" + repeated("- ", 50'000) + "' }}"), "loaded") << "a text is one word";
  EXPECT_THAT(refusal("{% raw %}" + repeated("{{ - ", 10'000) + "{% endraw %}"), "loaded") << "no expression at all";
}

TEST(ChatTemplateLoad, MacrosThatCallThemselvesEndWithASentence) {
  const std::string source =
      "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{% if messages %}{{ messages[0].content }}{% else %}{{ m(1) }}{% "
      "endif %}";
  const ModelDir dir({{"chat_template.jinja", source}});
  EXPECT_THAT(render(dir.path(), ""), HasSubstr("recursion limit"));
}

TEST(ChatTemplateLoad, NamedTemplatesInEveryForm) {
  const std::string list = R"([{"name": "default", "template": "plain"}, {"name": "rag", "template": "{%"},
                               {"name": "tool_use", "template": "tools"}])";
  const std::string names = R"({"default": "plain", "rag": "{%", "tool_use": "tools"})";
  for (const std::string& templates : {list, names}) {
    const ModelDir dir({{"tokenizer_config.json", R"({"chat_template": )" + templates + "}"}});
    EXPECT_EQ(render(dir.path(), ""), "plain");
    EXPECT_EQ(render(dir.path(), "[{}]"), "tools");
  }
  const ModelDir files(
      Files{{"chat_template.jinja", "plain"}, {"tokenizer_config.json", R"({"chat_template": )" + names + "}"}});
  EXPECT_EQ(render(files.path(), "[{}]"), "plain") << "files count alone";
  write(fs::path(files.path()) / "additional_chat_templates/tool_use.jinja", "tools of a file {{ tools|length }}");
  write(fs::path(files.path()) / "additional_chat_templates/rag.jinja", "{%");
  EXPECT_EQ(render(files.path(), ""), "plain");
  EXPECT_EQ(render(files.path(), "[{}]"), "tools of a file 1");
  fs::remove(fs::path(files.path()) / "chat_template.jinja");
  EXPECT_THAT(render(files.path(), ""), HasSubstr("this model has no chat template"));
  EXPECT_EQ(render(files.path(), "[{}]"), "tools of a file 1");
  write(fs::path(files.path()) / "additional_chat_templates/tool_use.jinja", "{% if %}");
  EXPECT_THAT(render(files.path(), ""),
              HasSubstr("the chat template of additional_chat_templates/tool_use.jinja does not"));
  for (const char* templates : {"1", R"({"default": 1})", R"([{"name": "default"}])", R"(["a"])"}) {
    const ModelDir dir({{"tokenizer_config.json", std::string(R"({"chat_template": )") + templates + "}"}});
    EXPECT_THAT(render(dir.path(), ""), HasSubstr("must be a string, a list of {name, template} objects")) << templates;
  }
}

// Clients see a template's output: a link would show them any file of the server's.
TEST(ChatTemplateLoad, LinksStayWithinTheFolderAndTheCache) {
  const ModelDir outside(Files{{"secret", "secret"}});
  const std::string secret = fs::path(outside.path()) / "secret";
  for (const std::string name :
       {"chat_template.jinja", "additional_chat_templates/tool_use.jinja", "additional_chat_templates/default.jinja"}) {
    const ModelDir dir(Files{});
    const fs::path link = fs::path(dir.path()) / name;
    fs::create_directories(link.parent_path());
    fs::create_symlink(secret, link);
    EXPECT_THAT(render(dir.path(), "[{}]"), AllOf(HasSubstr("outside the model's folder"), HasSubstr(name))) << name;
    fs::remove(link);
    write(fs::path(dir.path()) / "other", "own");
    fs::create_symlink(fs::absolute(fs::path(dir.path()) / "other"), link);
    EXPECT_EQ(render(dir.path(), "[{}]"), "own");
  }
  const ModelDir elsewhere(Files{});
  fs::create_directory_symlink(outside.path(), fs::path(elsewhere.path()) / "additional_chat_templates");
  fs::rename(secret, fs::path(outside.path()) / "tool_use.jinja");
  EXPECT_THAT(render(elsewhere.path(), "[{}]"), HasSubstr("outside the model's folder"));

  const ModelDir cache(Files{});
  const fs::path repository = fs::path(cache.path()) / "models--a--b", snapshot = repository / "snapshots/main";
  write(repository / "blobs/1234", "of the cache");
  write(repository / "refs/main", "refs");
  fs::create_directories(snapshot);
  fs::create_symlink("../../blobs/1234", snapshot / "chat_template.jinja");
  EXPECT_EQ(render(snapshot, ""), "of the cache");
  fs::remove(snapshot / "chat_template.jinja");
  fs::create_symlink("../../refs/main", snapshot / "chat_template.jinja");
  EXPECT_THAT(render(snapshot, ""), HasSubstr("outside the model's folder"));
  const ModelDir model(Files{});
  fs::create_symlink(secret, fs::path(model.path()) / "named.jinja");
  write(secret, "named");
  EXPECT_TRUE(load_template_file(model.path(), fs::path(model.path()) / "named.jinja").ok()) << "the user names it";
}

}  // namespace
}  // namespace volley::text
