// An operator's replacements for a model's text settings reach requests.
#include "apps/cli/text_defaults.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "serve/testing/fake_engine.h"

namespace volley::apps {
namespace {

class TextFile {
 public:
  explicit TextFile(const std::string& text) { std::ofstream(path_) << text; }
  ~TextFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "volley_text_defaults";
};

std::unique_ptr<Engine> engine_with(const TextFlags& flags) {
  auto defaults = read_text_defaults(flags, "models/pocket");
  EXPECT_TRUE(defaults.ok()) << defaults.error().message;
  return with_text_defaults(std::make_unique<serve::FakeEngine>(), std::move(*defaults));
}

std::string refusal(const TextFlags& flags) {
  const auto defaults = read_text_defaults(flags, "models/pocket");
  if (defaults.ok()) return "accepted";
  EXPECT_EQ(defaults.error().code, ErrorCode::kInvalidArgument);
  return defaults.error().message;
}

TEST(TextDefaults, JoinsObjects) {
  EXPECT_EQ(join_objects(R"({"a": 1})", R"( {"a": 2, "b": [3]} )"), R"({"a": 1,"a": 2, "b": [3]})");
  EXPECT_EQ(join_objects("", R"({"a": 1.0})"), R"({"a": 1.0})");
  EXPECT_EQ(join_objects("{ }", R"({"a": 1})"), R"({"a": 1})");
  EXPECT_EQ(join_objects(R"({"a": 1})", ""), R"({"a": 1})");
  EXPECT_EQ(join_objects(R"({"a": 1})", "{}"), R"({"a": 1})");
}

// A chat's own variables override those for all chats; both reach the operator's template.
TEST(TextDefaults, TemplateAndItsVariables) {
  const TextFile file("{{ messages[0].content }} {{ a }} {{ b }}");
  const auto engine = engine_with({.chat_template = file.path(), .template_kwargs = R"({"a": "all", "b": "all"})"});
  ChatMessages chat;
  chat.messages_json = R"([{"role": "user", "content": "Hi"}])";
  EXPECT_EQ(engine->render_chat(chat).value(), "Hi all all");
  chat.template_kwargs_json = R"({"b": "own"})";
  EXPECT_EQ(engine->render_chat(chat).value(), "Hi all own");
}

TEST(TextDefaults, VariablesReachTheModelsOwnTemplate) {
  const auto engine = engine_with({.template_kwargs = R"({"a": 1})"});
  EXPECT_NE(engine->render_chat({.messages_json = "[]"}).value().find(R"({"a": 1})"), std::string::npos);
}

TEST(TextDefaults, Sampling) {
  serve::FakeEngine plain;
  EXPECT_EQ(engine_with({})->info().default_sampling.temperature, plain.info().default_sampling.temperature);
  const auto engine = engine_with({.generation_config = "none", .sampling_overrides = R"({"top_p": 0.5})"});
  EXPECT_EQ(engine->info().default_sampling.temperature, 1.0f);
  EXPECT_EQ(engine->info().default_sampling.top_p, 0.5f);
  EXPECT_EQ(engine->info().default_sampling.top_k, 0);
}

// If a model's makers name no sampling, the first answer must not be nonsense. Named values count.
TEST(TextDefaults, ChatsAreSampledMildlyWhereNothingIsSaid) {
  const std::string folder = testing::TempDir() + "volley_chat_defaults_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const auto defaults = [&folder](const char* generation, const TextFlags& flags = {}) {
    std::ofstream(folder + "/generation_config.json") << generation;
    const AnswerDefaults chat = chat_defaults(flags, folder);
    return std::tuple(chat.milder, chat.sampling->temperature, chat.sampling->top_p, chat.sampling->repetition_penalty);
  };
  EXPECT_EQ(defaults("{}"), std::tuple(true, 0.7f, 0.95f, 1.0f));
  EXPECT_EQ(defaults(R"({"do_sample": true, "repetition_penalty": 1.5})"), std::tuple(true, 0.7f, 0.95f, 1.5f));
  EXPECT_EQ(defaults(R"({"temperature": 1.0})"), std::tuple(false, 1.0f, 1.0f, 1.0f));
  EXPECT_EQ(defaults(R"({"do_sample": false})"), std::tuple(false, 0.0f, 1.0f, 1.0f));
  EXPECT_EQ(defaults("{}", {.generation_config = "none"}), std::tuple(false, 1.0f, 1.0f, 1.0f));
  EXPECT_EQ(defaults("{}", {.sampling_overrides = R"({"top_p": 0.5})"}), std::tuple(false, 1.0f, 0.5f, 1.0f));
  std::filesystem::remove_all(folder);
}

// A model with wrong sampling defaults works for users who leave them out or replace the wrong part.
TEST(TextDefaults, SamplingOfAWrongFile) {
  const std::string folder = testing::TempDir() + "volley_wrong_sampling";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/generation_config.json") << R"({"temperature": -1, "top_k": 9})";
  const auto own = read_text_defaults({}, folder);
  ASSERT_FALSE(own.ok());
  EXPECT_NE(own.error().message.find("--generation-config: " + folder), std::string::npos) << own.error().message;
  EXPECT_NE(own.error().message.find("temperature"), std::string::npos) << own.error().message;
  const auto none = read_text_defaults({.generation_config = "none"}, folder);
  ASSERT_TRUE(none.ok()) << none.error().message;
  EXPECT_EQ(none->sampling->temperature, 1.0f);
  const auto replaced = read_text_defaults({.sampling_overrides = R"({"temperature": 0.5})"}, folder);
  ASSERT_TRUE(replaced.ok()) << replaced.error().message;
  EXPECT_EQ(replaced->sampling->top_k, 9);
  std::filesystem::remove_all(folder);
}

TEST(TextDefaults, WhatCannotBeUsedIsNamed) {
  const TextFile file("{% if %}");
  EXPECT_TRUE(refusal({.chat_template = file.path()})
                  .starts_with("--chat-template: " + file.path() + ": the chat template does not compile: "))
      << refusal({.chat_template = file.path()});
  EXPECT_EQ(refusal({.chat_template = "/no/file"}),
            "--chat-template: There is no file /no/file: name a Jinja template.");
  const TextFile endless("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}");
  EXPECT_NE(refusal({.chat_template = endless.path()}), "accepted");
  EXPECT_EQ(refusal({.generation_config = "/no/folder"}),
            "--generation-config: There is no /no/folder/generation_config.json: name a folder that has one, or auto, "
            "or none.");
}

}  // namespace
}  // namespace volley::apps
