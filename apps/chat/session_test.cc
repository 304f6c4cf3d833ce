// Inputs of a chat without a terminal: what the model is asked, what is kept, what commands do.
#include "apps/chat/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace volley::apps {
namespace {

using Json = nlohmann::json;
using Origin = TokenColours::Origin;

// Gives listed answers, and records what it was asked.
class ScriptedBackend final : public ChatBackend {
 public:
  std::string name() const override { return "scripted"; }
  bool knows_origins() const override { return true; }
  void stop() override {}
  const AnswerDefaults& defaults() const override { return usual; }
  Result<ChatAnswer> answer(const Conversation& conversation, const ChatSettings& settings, const OnSpan& on_span,
                            const OnWait& on_wait) override {
    asked.push_back(Json::parse(conversation.messages_json()));
    temperatures.push_back(settings.sampling.temperature);
    if (answers.empty()) return invalid_argument("No answer is left.");
    ChatAnswer answer = answers.front();
    answers.erase(answers.begin());
    for (const ChatWait& wait : waits) on_wait(wait);
    if (!answer.reasoning.empty()) on_span({answer.reasoning, Origin::kDrafted, true});
    for (const ChatWait& wait : waits) on_wait(wait);
    if (!answer.content.empty()) on_span({answer.content, Origin::kChosen, false});
    for (const ChatWait& wait : waits) on_wait(wait);
    return answer;
  }

  AnswerDefaults usual{SamplingParams{}, false, std::nullopt};
  std::vector<ChatWait> waits;  // before, between and after the text
  std::vector<ChatAnswer> answers;
  std::vector<Json> asked;
  std::vector<std::optional<float>> temperatures;
};

class Session : public testing::Test {
 protected:
  void answers(std::vector<std::string> texts) {
    for (std::string& text : texts) backend_.answers.push_back({std::move(text), "", FinishReason::kStop, {}, {}});
  }
  std::string take(const std::string& input) {
    printed_.clear();
    said_.clear();
    waits_.clear();
    EXPECT_TRUE(session_.take(input));
    return said_;
  }

  ChatSession session(bool show_reasoning) {
    return {&backend_, ChatLook{true, show_reasoning, false}, [this](std::string_view text) { printed_ += text; },
            [this](std::string_view text) { said_ += text; },
            [this](std::string_view text) { waits_.emplace_back(text); }};
  }

  ScriptedBackend backend_;
  std::string printed_, said_;
  std::vector<std::string> waits_;
  ChatSession session_ = session(true);
};

TEST_F(Session, EveryTurnSendsWhatWasSaidBefore) {
  answers({"one", "two"});
  take("/system Be brief.");
  take("first");
  take(" /second ");
  EXPECT_EQ(backend_.asked.back(), Json::parse(R"([{"role": "system", "content": "Be brief."},
      {"role": "user", "content": "first"}, {"role": "assistant", "content": "one"},
      {"role": "user", "content": "/second"}])"));
  take("/clear");
  EXPECT_TRUE(session_.conversation().messages.empty());
  EXPECT_EQ(session_.conversation().system, "Be brief.");
}

TEST_F(Session, TheSystemMessageIsShownSetAndTakenAway) {
  EXPECT_EQ(take("/system"), "There is no system message: /system TEXT sets one.");
  EXPECT_EQ(take("/system Be brief.\nAnd kind."), "The system message is set.");
  EXPECT_EQ(take("/system  "),
            "That is the system message: /system TEXT sets another one, /system none takes it away.");
  EXPECT_EQ(printed_, "Be brief.\nAnd kind.\n");
  EXPECT_EQ(session_.conversation().system, "Be brief.\nAnd kind.") << "to look at it changes nothing";
  EXPECT_EQ(take("/system none"), "There is no system message now.");
  EXPECT_EQ(session_.conversation().system, "");
  take("/system none of this");
  EXPECT_EQ(session_.conversation().system, "none of this");
  take("/system \x1b]0;title\x07");
  take("/system");
  EXPECT_EQ(printed_.find('\x1b'), std::string::npos) << "it may come from a file";
}

TEST_F(Session, AnAnswerThatDoesNotComeShowsThatItIsWaitedFor) {
  using Waits = std::vector<std::string>;
  backend_.waits = {{0.1, 9000, 0}, {2.9, 9000, 0}, {3.2, 9000, 4096}};
  answers({"one", "two", "three"});
  take("first");
  EXPECT_EQ(waits_,
            (Waits{"reading the prompt: 9000 tokens, 2 s", "reading the prompt: 4096 of 9000 tokens, 3 s",
                   "reading the prompt: 9000 tokens, 2 s", "reading the prompt: 4096 of 9000 tokens, 3 s", "", ""}))
      << "until something is shown, and nothing afterwards";
  backend_.waits = {{15, std::nullopt, std::nullopt}};
  take("second");
  EXPECT_EQ(waits_.front(), "waiting for the answer, 15 s") << "of a server that does not say more";
  backend_.waits = {{0.2, 10, 0}};
  take("third");
  EXPECT_EQ(waits_, (Waits{"", ""})) << "a quick one shows nothing";
  EXPECT_EQ(take("fourth"), "No answer is left.");
  EXPECT_EQ(waits_.back(), "") << "nothing is left behind by a failure";
}

TEST_F(Session, HiddenThoughtsShowThatItThinks) {
  backend_.waits = {{5, 10, 10}};
  backend_.answers = {{"yes", "hmm", FinishReason::kStop, {}, {}}};
  ChatSession hiding = session(false);
  EXPECT_TRUE(hiding.take("first"));
  EXPECT_EQ(waits_, (std::vector<std::string>{"reading the prompt: 10 of 10 tokens, 5 s", "thinking, 5 s", "", ""}));
  EXPECT_EQ(printed_, "\x1b[1myes\x1b[0m\n");
}

TEST_F(Session, ReasoningIsDimAndNotSentAgain) {
  backend_.answers = {{"yes", "hmm", FinishReason::kStop, {}, {}}};
  answers({"more"});
  take("first");
  EXPECT_EQ(printed_, "\x1b[2m\x1b[32mhmm\x1b[0m\x1b[0m\n\n\x1b[1myes\x1b[0m\n");
  take("second");
  EXPECT_EQ(backend_.asked.back()[1], Json::parse(R"({"role": "assistant", "content": "yes"})"));
}

// A model or an endpoint must not control the terminal.
TEST_F(Session, ControlCharactersOfAnAnswerAreShown) {
  answers({"a\x1b]0;title\x07\tb\n"});
  take("first");
  EXPECT_EQ(printed_.find("\x1b]"), std::string::npos);
  EXPECT_NE(printed_.find("a\\x1B]0;title\\x07\tb\n"), std::string::npos) << printed_;
}

TEST_F(Session, AnAnswerThatFailsLeavesTheConversation) {
  answers({"one"});
  take("first");
  EXPECT_EQ(take("second"), "No answer is left.");
  EXPECT_EQ(session_.conversation().messages.size(), 2u);
  EXPECT_EQ(take("/regenerate"), "No answer is left.");
  EXPECT_EQ(session_.conversation().messages.back().content, "one");
  answers({"other"});
  take("/regenerate");
  EXPECT_EQ(session_.conversation().messages.back().content, "other");
  EXPECT_EQ(session_.conversation().messages.size(), 2u);
}

TEST_F(Session, AStoppedAnswerIsGoneOnFrom) {
  backend_.answers = {{"half", "", FinishReason::kCancelled, {}, {}}, {"", "", FinishReason::kCancelled, {}, {}}};
  EXPECT_EQ(take("first"), "Stopped.");
  EXPECT_EQ(session_.conversation().messages.size(), 2u);
  take("second");
  EXPECT_EQ(session_.conversation().messages.size(), 2u) << "a message without an answer is taken back";
}

TEST_F(Session, SettingsReachTheAnswer) {
  answers({"one", "two"});
  EXPECT_EQ(take("/set temperature 0.5"), "");
  take("first");
  EXPECT_EQ(backend_.temperatures.back(), 0.5f);
  take("/set");
  EXPECT_NE(printed_.find("temperature         0.5\n"), std::string::npos) << printed_;
  take("/set temperature default");
  take("second");
  EXPECT_EQ(backend_.temperatures.back(), std::nullopt);
  EXPECT_EQ(take("/set temperature warm"), "temperature must be a number or default, not warm.");
  EXPECT_EQ(take("/set max_tokens 1.5"), "max_tokens must be a whole number or default, not 1.5.");
  EXPECT_NE(take("/set temprature 1").find("There is no setting temprature: there are temperature, "),
            std::string::npos);
}

// The word "default" would not tell the user the value.
TEST_F(Session, SettingsShowWhatCounts) {
  backend_.usual.sampling->temperature = 0.7f;
  backend_.usual.sampling->top_k = 20;
  backend_.usual.thinking = true;
  take("/set top_p 0.95");
  take("/set");
  EXPECT_EQ(printed_,
            "temperature         0.7 (default)\n"
            "top_p               0.95\n"
            "top_k               20 (default)\n"
            "min_p               0 (default)\n"
            "repetition_penalty  1 (default)\n"
            "presence_penalty    0 (default)\n"
            "frequency_penalty   0 (default)\n"
            "seed                drawn for each answer (default)\n"
            "max_tokens          as many as fit (default)\n"
            "thinking            on (default)\n");
  backend_.usual = {};
  take("/set");
  EXPECT_NE(printed_.find("temperature         the server's (default)\n"), std::string::npos) << printed_;
  EXPECT_NE(printed_.find("thinking            as the model does (default)\n"), std::string::npos) << printed_;
}

TEST_F(Session, SavedConversationsAreLoaded) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("volley_chat_" + std::to_string(getpid()))).string();
  backend_.answers = {{"yes", "hmm", FinishReason::kStop, {}, {}}};
  take("/system Be brief.");
  take("/set seed 18446744073709551615");
  take("/set thinking off");
  take("first\nwith two lines");
  EXPECT_EQ(take("/save " + path), "Saved to " + path + ".");
  const std::string kept = conversation_file(session_.conversation(), session_.settings());
  take("/clear");
  take("/system none");
  take("/set seed default");
  EXPECT_EQ(take("/load " + path), "Loaded 2 messages.");
  EXPECT_EQ(conversation_file(session_.conversation(), session_.settings()), kept);
  take("/clear");
  std::filesystem::create_directory(path + ".being-saved");  // nothing can be written there
  EXPECT_NE(take("/save " + path), "Saved to " + path + ".");
  EXPECT_EQ(take("/load " + path), "Loaded 2 messages.") << "a write that fails leaves what was kept";
  std::filesystem::remove(path + ".being-saved");
  std::filesystem::remove(path);
  EXPECT_FALSE(take("/load " + path).empty());
  EXPECT_EQ(session_.conversation().messages.size(), 2u);
}

TEST_F(Session, PicturesGoWithTheNextMessageAndAreKept) {
  const std::string path = std::filesystem::temp_directory_path() / ("volley_chat_" + std::to_string(getpid()));
  std::ofstream(path) << "GIF89a";
  answers({"A", "B", "C"});
  EXPECT_EQ(take("/image"), "/image needs a file: /image FILE.");
  EXPECT_EQ(take("/image " + path), "The next message shows " + path + ".");
  take("What?");
  take("And?");
  const Json picture = {{"type", "image_url"}, {"image_url", {{"url", "data:image/gif;base64,R0lGODlh"}}}};
  const Json content = {picture, {{"type", "text"}, {"text", "What?"}}};
  EXPECT_EQ(backend_.asked.back()[0]["content"], content);
  EXPECT_EQ(backend_.asked.back()[2]["content"], "And?");
  ChatSettings settings;
  const std::string kept = conversation_file(session_.conversation(), settings);
  const auto read = read_conversation(kept, &settings);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(conversation_file(*read, settings), kept);
  std::ofstream(path) << "text";
  EXPECT_EQ(take("/image " + path), path + " is no picture in PNG, JPEG, WebP or GIF.");
  std::filesystem::remove(path);
}

TEST_F(Session, WrongFilesSayWhatIsWrong) {
  ChatSettings settings;
  for (const auto& [text, message] :
       {std::pair("{", "it is not JSON"),
        {"{}", "it holds no list of messages"},
        {R"([{"role": "tool", "content": "x"}])",
         "a message needs a role (system, user or assistant) and a text as content"},
        {R"([{"role": "user", "content": "x"}, {"role": "system", "content": "x"}])",
         "a system message must be the first, and there may be one"},
        {R"({"messages": [], "settings": {"seed": -1}})", "seed must be a whole number or default, not -1."}}) {
    const auto read = read_conversation(text, &settings);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().message, message);
  }
}

TEST_F(Session, UnknownCommandsNameTheNearest) {
  EXPECT_EQ(take("/regenrate").substr(0, 50), "/regenrate is no command (did you mean /regenerate");
  EXPECT_EQ(take("/clear all"), "/clear takes nothing: leave out \"all\".");
  EXPECT_EQ(take("/save"), "/save needs a file: /save FILE.");
  EXPECT_EQ(take("/stats"), "There is no answer yet.");
  EXPECT_FALSE(session_.take("/quit"));
}

TEST(SpansOfPieces, FollowTheTokens) {
  const auto spans = spans_of_pieces("One two.", {"One", " two", "<|im_end|>", "."}, 2);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].text, "One two");
  EXPECT_EQ(spans[0].origin, Origin::kDrafted);
  EXPECT_EQ(spans[1].text, ".");
  EXPECT_EQ(spans[1].origin, Origin::kChosen);
  const auto unknown = spans_of_pieces("\xC3\xA4", {"\xEF\xBF\xBD", "\xEF\xBF\xBD"}, 2);
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].origin, Origin::kUnknown);
}

}  // namespace
}  // namespace volley::apps
