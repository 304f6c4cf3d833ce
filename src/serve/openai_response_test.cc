// Protects the response schemas that client libraries decode: objects, chunks, log-probabilities, usage.
#include "serve/openai_response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/testing/client.h"

namespace volley::serve {
namespace {

using nlohmann::json;

ResponseInfo make_info(ApiKind kind, int n = 1) {
  ResponseInfo info;
  info.kind = kind;
  info.id = "id-1";
  info.model = "pocket";
  info.created = 1700000000;
  info.n = n;
  info.token_text = [](TokenId id) { return id == 999 ? std::string("\xEF\xBF\xBD") : std::string(1, char(id)); };
  return info;
}

Event text_event(std::string text) {
  Event event;
  event.text = std::move(text);
  return event;
}

Event last_event(FinishReason reason, Usage usage, std::string text = "") {
  Event event = text_event(std::move(text));
  event.finish.emplace().reason = reason;
  event.finish->usage = usage;
  return event;
}

Usage make_usage(int prompt, int cached, int completion, int drafted = 0, int accepted = 0) {
  Usage usage;
  usage.prompt_tokens = prompt;
  usage.cached_tokens = cached;
  usage.completion_tokens = completion;
  usage.drafted_tokens = drafted;
  usage.accepted_tokens = accepted;
  return usage;
}

TEST(WholeResponse, Chat) {
  const auto writer = whole_response_writer(make_info(ApiKind::kChat), 1);
  EXPECT_EQ(writer->add(0, text_event("Hé")), "");
  EXPECT_EQ(writer->add(0, text_event("llo")), "");
  writer->add(0, last_event(FinishReason::kStop, make_usage(10, 4, 5, 12, 3), "!"));
  EXPECT_EQ(json::parse(writer->end()), json::parse(R"({
    "id": "id-1", "object": "chat.completion", "created": 1700000000, "model": "pocket", "system_fingerprint": null,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Héllo!", "refusal": null}, "logprobs": null,
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
              "prompt_tokens_details": {"cached_tokens": 4},
              "completion_tokens_details": {"accepted_prediction_tokens": 3, "rejected_prediction_tokens": 9}}})"));
}

TEST(WholeResponse, CompletionsOfSeveralPromptsWithEcho) {
  ResponseInfo info = make_info(ApiKind::kCompletion, 2);
  info.echo = {"P0 ", "P1 "};
  const auto writer = whole_response_writer(info, 4);
  for (const int choice : {3, 0, 2, 1}) {
    writer->add(choice, last_event(FinishReason::kLength, make_usage(10 + choice, choice, 2), std::to_string(choice)));
  }
  const json body = json::parse(writer->end());
  EXPECT_EQ(body.at("object"), "text_completion");
  ASSERT_EQ(body.at("choices").size(), 4u);
  for (int choice = 0; choice < 4; ++choice) {
    const json& entry = body.at("choices").at(choice);
    EXPECT_EQ(entry.at("index"), choice);
    EXPECT_EQ(entry.at("text"), "P" + std::to_string(choice / 2) + " " + std::to_string(choice));
    EXPECT_EQ(entry.at("finish_reason"), "length");
  }
  // Each prompt counts once: those of choices 0 and 2.
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 10 + 12);
  EXPECT_EQ(body.at("usage").at("prompt_tokens_details").at("cached_tokens"), 2);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 8);
}

json stream_json(const std::string& event) {
  return json::parse(event);
}

TEST(StreamedResponse, Chat) {
  ResponseInfo info = make_info(ApiKind::kChat);
  info.include_usage = true;
  const auto writer = stream_response_writer(info, 1);
  std::string bytes = writer->add(0, text_event("Hé"));
  EXPECT_TRUE(bytes.ends_with("\n\n"));
  EXPECT_EQ(writer->add(0, text_event("")), "") << "text that is held back makes no chunk";
  bytes += writer->add(0, text_event("llo"));
  bytes += writer->add(0, last_event(FinishReason::kLength, make_usage(3, 0, 2)));
  bytes += writer->end();
  const auto events = stream_events(bytes);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(stream_json(events[0]), json::parse(R"({
    "id": "id-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "pocket",
    "system_fingerprint": null, "usage": null,
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]})"));
  EXPECT_EQ(stream_json(events[1]).at("choices").at(0).at("delta"), json::parse(R"({"content": "Hé"})"));
  EXPECT_EQ(stream_json(events[2]).at("choices").at(0).at("delta"), json::parse(R"({"content": "llo"})"));
  EXPECT_EQ(stream_json(events[3]).at("choices").at(0),
            json::parse(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"})"));
  EXPECT_EQ(stream_json(events[4]).at("choices"), json::array());
  EXPECT_EQ(stream_json(events[4]).at("usage").at("total_tokens"), 5);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST(StreamedResponse, UsageOnlyWhenAsked) {
  const auto writer = stream_response_writer(make_info(ApiKind::kChat), 1);
  const std::string bytes = writer->add(0, last_event(FinishReason::kStop, make_usage(1, 0, 1), "x")) + writer->end();
  EXPECT_EQ(bytes.find("usage"), std::string::npos);
}

TEST(StreamedResponse, InterleavedCompletions) {
  ResponseInfo info = make_info(ApiKind::kCompletion, 2);
  info.echo = {"Q:"};
  const auto writer = stream_response_writer(info, 2);
  std::string bytes = writer->add(1, text_event("b"));
  bytes += writer->add(0, text_event("a"));
  bytes += writer->add(1, last_event(FinishReason::kStop, {}, "B"));
  bytes += writer->add(0, last_event(FinishReason::kStop, {}));
  bytes += writer->end();
  std::map<int, std::string> texts;
  std::map<int, int> finished;
  for (const std::string& event : stream_events(bytes)) {
    if (event == "[DONE]") continue;
    const json choice = stream_json(event).at("choices").at(0);
    texts[choice.at("index")] += choice.at("text");
    finished[choice.at("index")] += choice.at("finish_reason") == "stop";
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "Q:a"}, {1, "Q:bB"}}));
  EXPECT_EQ(finished, (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST(StreamedResponse, ErrorEndsTheStream) {
  const auto events = stream_events(stream_error(api_error(internal_error("it broke"))));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(stream_json(events[0]).at("error").at("message"), "it broke");
  EXPECT_EQ(events[1], "[DONE]");
}

Event logprob_event() {
  Event event = text_event("ab");
  event.tokens = {'a', 'b'};
  event.logprobs.push_back({{'a', -0.25f}, {{'a', -0.25f}, {999, -2.0f}}});
  event.logprobs.push_back({{'b', -std::numeric_limits<float>::infinity()}, {}});
  return event;
}

TEST(Logprobs, ChatSchema) {
  ResponseInfo info = make_info(ApiKind::kChat);
  info.logprobs = true;
  const auto writer = whole_response_writer(info, 1);
  writer->add(0, logprob_event());
  writer->add(0, last_event(FinishReason::kStop, {}));
  EXPECT_EQ(json::parse(writer->end()).at("choices").at(0).at("logprobs"), json::parse(R"({"refusal": null, "content": [
    {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.25, "bytes": [97]}, {"token": "\ufffd", "logprob": -2.0, "bytes": null}]},
    {"token": "b", "logprob": -9999.0, "bytes": [98], "top_logprobs": []}]})"));
}

TEST(Logprobs, CompletionSchemaCountsOffsetsAcrossEvents) {
  ResponseInfo info = make_info(ApiKind::kCompletion);
  info.logprobs = true;
  const auto writer = whole_response_writer(info, 1);
  writer->add(0, logprob_event());
  writer->add(0, logprob_event());
  writer->add(0, last_event(FinishReason::kStop, {}));
  const json logprobs = json::parse(writer->end()).at("choices").at(0).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), json::parse(R"(["a", "b", "a", "b"])"));
  EXPECT_EQ(logprobs.at("token_logprobs"), json::parse("[-0.25, -9999.0, -0.25, -9999.0]"));
  EXPECT_EQ(logprobs.at("text_offset"), json::parse("[0, 1, 2, 3]"));
  EXPECT_EQ(logprobs.at("top_logprobs").at(0), json::parse(R"({"a": -0.25, "\ufffd": -2.0})"));
}

TEST(Logprobs, StreamsGoWithTheirTokensEvenWithoutText) {
  ResponseInfo info = make_info(ApiKind::kChat);
  info.logprobs = true;
  const auto writer = stream_response_writer(info, 1);
  Event held = logprob_event();
  held.text.clear();
  const auto events = stream_events(writer->add(0, held));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(stream_json(events[1]).at("choices").at(0).at("logprobs").at("content").size(), 2u);
}

}  // namespace
}  // namespace volley::serve
