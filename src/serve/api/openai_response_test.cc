// Protects the responses that client libraries decode: objects, chunks, log-probabilities, usage.
#include "serve/api/openai_response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/formats/format_for_test.h"
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
  info.prompts.resize(1);
  info.token_text = [](TokenId id) { return id >= 999 ? std::string("\xEF\xBF\xBD") : std::string(1, char(id)); };
  // 1000 and 1001 are the two halves of one character.
  info.decode = [token_text = info.token_text](std::span<const TokenId> ids, bool) {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool whole = ids[i] == 1000 && i + 1 < ids.size() && ids[i + 1] == 1001;
      text += whole ? "é" : token_text(ids[i]);
      i += whole ? 1 : 0;
    }
    return text;
  };
  return info;
}

ResponseInfo shaped(ApiKind kind, std::function<void(ResponseShape&)> shape) {
  ResponseInfo info = make_info(kind);
  shape(info.shape);
  return info;
}

ResponseInfo with_logprobs(ApiKind kind) {
  ResponseInfo info = make_info(kind);
  info.logprobs = true;
  return info;
}

Event text_event(std::string text, std::vector<TokenId> tokens = {}) {
  Event event;
  event.text = std::move(text);
  event.tokens = std::move(tokens);
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

// The events of one choice, and an end where they have none.
std::string written(ResponseWriter& writer, const std::vector<Event>& events) {
  std::string bytes;
  for (const Event& event : events) bytes += writer.add(0, event);
  if (!events.back().finish) bytes += writer.add(0, last_event(FinishReason::kStop, {}));
  return bytes + writer.end();
}

json whole(const ResponseInfo& info, const std::vector<Event>& events) {
  return json::parse(written(*whole_response_writer(info, 1), events));
}

json whole_choice(const ResponseInfo& info, const std::vector<Event>& events) {
  return whole(info, events).at("choices").at(0);
}

std::vector<json> chunks_of(const std::string& bytes) {
  std::vector<json> chunks;
  for (const std::string& event : stream_events(bytes)) {
    if (event != "[DONE]") chunks.push_back(json::parse(event));
  }
  return chunks;
}

std::vector<json> streamed(const ResponseInfo& info, const std::vector<Event>& events) {
  return chunks_of(written(*stream_response_writer(info, 1), events));
}

TEST(WholeResponse, Chat) {
  const auto writer = whole_response_writer(make_info(ApiKind::kChat), 1);
  EXPECT_EQ(writer->add(0, text_event("Hé")), "");
  EXPECT_EQ(writer->add(0, text_event("llo")), "");
  writer->add(0, last_event(FinishReason::kStop, make_usage(10, 4, 5, 12, 3), "!"));
  EXPECT_EQ(json::parse(writer->end()), json::parse(R"({
    "id": "id-1", "object": "chat.completion", "created": 1700000000, "model": "pocket", "system_fingerprint": null,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Héllo!", "refusal": null}, "logprobs": null,
                 "finish_reason": "stop", "stop_reason": null}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
              "prompt_tokens_details": {"cached_tokens": 4},
              "completion_tokens_details": {"reasoning_tokens": 0, "accepted_prediction_tokens": 3,
                                            "rejected_prediction_tokens": 9}}})"));
}

TEST(WholeResponse, CompletionsOfSeveralPromptsWithEcho) {
  ResponseInfo info = make_info(ApiKind::kCompletion, 2);
  info.prompts = {{1, {}, "P0 "}, {1, {}, "P1 "}};
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

TEST(StreamedResponse, Chat) {
  ResponseInfo info = make_info(ApiKind::kChat);
  info.shape.include_usage = true;
  const auto writer = stream_response_writer(info, 1);
  std::string bytes = writer->add(0, text_event("Hé"));
  EXPECT_TRUE(bytes.ends_with("\n\n"));
  EXPECT_EQ(writer->add(0, text_event("")), "") << "text that is held back makes no chunk";
  bytes += writer->add(0, text_event("llo"));
  bytes += writer->add(0, last_event(FinishReason::kLength, make_usage(3, 0, 2)));
  bytes += writer->end();
  const auto events = stream_events(bytes);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[5], "[DONE]");
  const auto chunks = chunks_of(bytes);
  EXPECT_EQ(chunks[0], json::parse(R"({
    "id": "id-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "pocket",
    "system_fingerprint": null, "usage": null,
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]})"));
  EXPECT_EQ(chunks[1].at("choices").at(0).at("delta"), json::parse(R"({"content": "Hé"})"));
  EXPECT_EQ(chunks[2].at("choices").at(0).at("delta"), json::parse(R"({"content": "llo"})"));
  EXPECT_EQ(
      chunks[3].at("choices").at(0),
      json::parse(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length", "stop_reason": null})"));
  EXPECT_EQ(chunks[4].at("choices"), json::array());
  EXPECT_EQ(chunks[4].at("usage").at("total_tokens"), 5);
}

TEST(StreamedResponse, UsageOnlyWhenAsked) {
  const auto writer = stream_response_writer(make_info(ApiKind::kChat), 1);
  const auto bytes = written(*writer, {last_event(FinishReason::kStop, make_usage(1, 0, 1), "x")});
  EXPECT_EQ(bytes.find("usage"), std::string::npos);
}

TEST(StreamedResponse, InterleavedCompletions) {
  ResponseInfo info = make_info(ApiKind::kCompletion, 2);
  info.prompts = {{1, {}, "Q:"}};
  const auto writer = stream_response_writer(info, 2);
  std::string bytes = writer->add(1, text_event("b"));
  bytes += writer->add(0, text_event("a"));
  bytes += writer->add(1, last_event(FinishReason::kStop, {}, "B"));
  bytes += writer->add(0, last_event(FinishReason::kStop, {}));
  bytes += writer->end();
  std::map<int, std::string> texts;
  std::map<int, int> finished;
  for (const json& chunk : chunks_of(bytes)) {
    const json& choice = chunk.at("choices").at(0);
    texts[choice.at("index")] += choice.at("text");
    finished[choice.at("index")] += choice.at("finish_reason") == "stop";
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "Q:a"}, {1, "Q:bB"}}));
  EXPECT_EQ(finished, (std::map<int, int>{{0, 1}, {1, 1}}));
}

TEST(StreamedResponse, ErrorEndsTheStream) {
  const auto writer = stream_response_writer(make_info(ApiKind::kCompletion), 1);
  const auto events = stream_events(writer->fail(api_error(internal_error("it broke"))));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(json::parse(events[0]).at("error").at("message"), "it broke");
  EXPECT_EQ(events[1], "[DONE]");
}

TEST(StreamedResponse, UsageInEveryChunkWhenAsked) {
  ResponseInfo info = shaped(ApiKind::kChat, [](ResponseShape& shape) { shape.continuous_usage = true; });
  info.prompts[0].tokens = 7;
  const auto chunks = streamed(info, {text_event("ab", {'a', 'b'})});
  for (const json& chunk : chunks) EXPECT_EQ(chunk.at("usage").at("prompt_tokens"), 7);
  EXPECT_EQ(chunks.back().at("usage").at("completion_tokens"), 2);
  EXPECT_EQ(chunks.back().at("usage").at("total_tokens"), 9);
}

TEST(StreamedResponse, BlocksAddUpToTheUsage) {
  Event block = text_event("bcd", {'b', 'c', 'd'});
  block.drafted = 5;
  block.accepted = 2;
  Usage usage = make_usage(1, 0, 4, 5, 2);
  usage.ttft_s = 0.25;
  const auto chunks = streamed(shaped(ApiKind::kChat, [](ResponseShape& shape) { shape.blocks = true; }),
                               {text_event("", {'a'}), block, last_event(FinishReason::kStop, usage)});
  ASSERT_EQ(chunks.size(), 4u) << "the role, a chunk a block, the end";
  EXPECT_EQ(chunks[1].at("volley"), json::parse(R"({"drafted": 0, "accepted": 0, "tokens": 1, "pieces": ["a"]})"));
  EXPECT_EQ(chunks[1].at("choices").at(0).at("delta"), json::parse(R"({"content": ""})"));
  EXPECT_EQ(chunks[2].at("volley"),
            json::parse(R"({"drafted": 5, "accepted": 2, "tokens": 3, "pieces": ["b", "c", "d"]})"));
  EXPECT_EQ(chunks[3].at("volley").at("timing").at("ttft_s"), 0.25);
}

TEST(WholeResponse, TokensPerStep) {
  Event last = last_event(FinishReason::kStop, make_usage(1, 0, 8));
  last.finish->tokens_per_step = {5, 2};
  const auto info = shaped(ApiKind::kChat, [](ResponseShape& shape) { shape.tokens_per_step = true; });
  EXPECT_EQ(whole_choice(info, {last}).at("volley"),
            json::parse(R"({"tokens_per_step": [5, 2], "acceptance_length": 3.5})"));
}

ResponseInfo with_prompt_logprobs(ApiKind kind, int logprobs) {
  ResponseInfo info = shaped(kind, [logprobs](ResponseShape& shape) {
    shape.token_ids = true;
    shape.prompt_logprobs = logprobs;
  });
  info.prompts[0].ids = {'p', 'q'};
  return info;
}

TEST(WholeResponse, TokenIdsAndPromptLogprobs) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    Event event = text_event("ab", {'a', 'b'});
    event.prompt_logprobs.push_back({{'q', -2.0f}, {{'x', -0.5f}, {'y', -1.0f}}});
    const json body = whole(with_prompt_logprobs(kind, 1), {event});
    const json& choice = body.at("choices").at(0);
    EXPECT_EQ(choice.at("token_ids"), json::parse("[97, 98]"));
    const json& holder = kind == ApiKind::kChat ? body : choice;
    EXPECT_EQ(holder.at("prompt_token_ids"), json::parse("[112, 113]"));
    EXPECT_EQ(holder.at("prompt_logprobs"),
              json::parse(R"([null, {"113": {"logprob": -2.0, "rank": null, "decoded_token": "q"},
                                     "120": {"logprob": -0.5, "rank": 1, "decoded_token": "x"}}])"));
  }
}

TEST(StreamedResponse, WhatBelongsToThePromptIsOnTheFirstChunk) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    Event event = text_event("", {'a'});
    event.prompt_logprobs.push_back({{'q', -2.0f}, {}});
    const auto chunks = streamed(with_prompt_logprobs(kind, 0), {event});
    const json& holder = kind == ApiKind::kChat ? chunks.front() : chunks.front().at("choices").at(0);
    EXPECT_EQ(holder.at("prompt_token_ids"), json::parse("[112, 113]"));
    EXPECT_EQ(holder.at("prompt_logprobs").size(), 2u);
    std::vector<TokenId> tokens;
    int with_prompt = 0;
    for (const json& chunk : chunks) {
      const json& choice = chunk.at("choices").at(0);
      for (const json& token : choice.value("token_ids", json::array())) tokens.push_back(token);
      with_prompt += chunk.contains("prompt_token_ids") || choice.contains("prompt_token_ids");
    }
    EXPECT_EQ(tokens, std::vector<TokenId>{'a'});
    EXPECT_EQ(with_prompt, 1);
  }
}

TEST(WholeResponse, EchoWithLogprobsAndNothingElse) {
  ResponseInfo info = shaped(ApiKind::kCompletion, [](ResponseShape& shape) { shape.echo_only = true; });
  info.logprobs = true;
  info.echo_logprobs = 1;
  info.prompts = {{2, {'p', 'q'}, "pq"}};
  Event event = text_event("x", {'x'});
  event.logprobs.push_back({{'x', -1.0f}, {}});
  event.prompt_logprobs.push_back({{'q', -2.0f}, {{'r', -0.5f}, {'s', -1.0f}}});
  const json body = whole(info, {event, last_event(FinishReason::kLength, make_usage(2, 0, 1))});
  EXPECT_EQ(body.at("choices").at(0).at("text"), "pq");
  EXPECT_EQ(
      body.at("choices").at(0).at("logprobs"),
      json::parse(
          R"({"tokens": ["p", "q"], "token_logprobs": [null, -2.0], "top_logprobs": [null, {"r": -0.5, "q": -2.0}],
                            "text_offset": [0, 1]})"));
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
}

// A prompt as long as the context: the engine had to choose its last token.
TEST(WholeResponse, TheLastTokenOfAPromptMayBeTheOutput) {
  ResponseInfo info = shaped(ApiKind::kCompletion, [](ResponseShape& shape) {
    shape.echo_only = true;
    shape.prompt_logprobs = 0;
  });
  info.logprobs = true;
  info.echo_logprobs = 0;
  info.prompts = {{3, {'p', 'q', 'r'}, "pqr", true}};
  Event event = text_event("r", {'r'});
  event.prompt_logprobs.push_back({{'q', -2.0f}, {}});
  event.logprobs.push_back({{'r', -3.0f}, {}});
  const json body = whole(info, {event, last_event(FinishReason::kLength, make_usage(2, 0, 1))});
  const json& choice = body.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "pqr");
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs"), json::parse("[null, -2.0, -3.0]"));
  EXPECT_EQ(choice.at("prompt_logprobs").size(), 3u);
  EXPECT_EQ(body.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(body.at("usage").at("completion_tokens"), 0);
}

// The tokenizer added a token to the text, which is not echoed.
TEST(WholeResponse, OffsetsOfAnEchoAreInTheEcho) {
  for (const bool shown : {false, true}) {
    ResponseInfo info = with_logprobs(ApiKind::kCompletion);
    info.echo_logprobs = 0;
    info.prompts = {{3, {'^', 'q', 'r'}, shown ? "^qr" : "qr"}};
    Event event = text_event("");
    event.prompt_logprobs = {{{'q', -2.0f}, {}}, {{'r', -2.0f}, {}}};
    EXPECT_EQ(whole_choice(info, {event}).at("logprobs").at("text_offset"),
              json::parse(shown ? "[0, 1, 2]" : "[0, 0, 1]"));
  }
}

// Thoughts are counted by token, and a streamed answer has the same count as a whole one.
TEST(Usage, CountsThoughts) {
  ResponseInfo info = shaped(ApiKind::kChat, [](ResponseShape& shape) { shape.include_usage = true; });
  info.reasoning = ReasoningStart::kClosed;
  info.parser = OutputParser::Options{answers_named("none"), ReasoningStart::kClosed, "call_"};
  const std::string text = "<think>hm!</think>Yes";  // one token a character
  for (const size_t piece : {size_t{1}, size_t{4}, text.size()}) {
    std::vector<Event> events;
    for (size_t at = 0; at < text.size(); at += piece) {
      const std::string part = text.substr(at, piece);
      events.push_back(text_event(part, {part.begin(), part.end()}));
    }
    events.push_back(last_event(FinishReason::kStop, make_usage(1, 0, 21)));
    const json body = whole(info, events);
    EXPECT_EQ(body.at("usage").at("completion_tokens_details").at("reasoning_tokens"), 3);
    EXPECT_EQ(body.at("choices").at(0).at("message").at("reasoning"), "hm!");
    EXPECT_EQ(body.at("choices").at(0).at("message").at("reasoning_content"), "hm!");
    EXPECT_EQ(streamed(info, events).back().at("usage"), body.at("usage"));
  }
}

TEST(WholeResponse, ARepetitionIsAReasonToEnd) {
  for (const ApiKind kind : {ApiKind::kChat, ApiKind::kCompletion}) {
    Event last = last_event(FinishReason::kStop, {}, "ha ha ha");
    last.finish->repeated = true;
    const json choice = whole_choice(make_info(kind), {last});
    EXPECT_EQ(choice.at("finish_reason"), "repetition");
    EXPECT_EQ(choice.at("stop_reason"), "repetition_detected");
  }
}

TEST(WholeResponse, KeepsTheStopWhenAsked) {
  for (const bool include : {false, true}) {
    Event last = last_event(FinishReason::kStop, {}, "text ");
    last.finish->stop_text = "END";
    const json choice =
        whole_choice(shaped(ApiKind::kCompletion, [&](auto& shape) { shape.include_stop = include; }), {last});
    EXPECT_EQ(choice.at("text"), include ? "text END" : "text ");
    EXPECT_EQ(choice.at("stop_reason"), "END");
  }
}

// Streamed deltas and the whole message must agree.
TEST(ToolCalls, StreamedAndWholeAgree) {
  const std::string text =
      "<think>hm</think>Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}\n</tool_call>";
  ResponseInfo info = make_info(ApiKind::kChat);
  info.parser = OutputParser::Options{answers_named("hermes"), ReasoningStart::kClosed, "call_"};
  std::vector<Event> events;
  for (const char c : text) events.push_back(text_event(std::string(1, c)));
  const auto chunks = streamed(info, events);
  const json choice = whole_choice(info, events);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  const json& message = choice.at("message");
  EXPECT_EQ(message.at("reasoning_content"), "hm");
  EXPECT_EQ(message.at("content"), "Well.");
  ASSERT_EQ(message.at("tool_calls").size(), 1u);
  EXPECT_EQ(message.at("tool_calls").at(0).at("function"),
            json::parse(R"({"name": "f", "arguments": "{\"a\": [1, 2]}"})"));
  std::string content, reasoning, arguments, id, name;
  for (const json& chunk : chunks) {
    const json& delta = chunk.at("choices").at(0).at("delta");
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", "")) << "vLLM's name, and the older one";
    if (!delta.contains("tool_calls")) continue;
    const json& call = delta.at("tool_calls").at(0);
    EXPECT_EQ(call.at("index"), 0);
    id += call.value("id", "");
    name += call.at("function").value("name", "");
    arguments += call.at("function").at("arguments").get<std::string>();
  }
  EXPECT_EQ(content, "Well.");
  EXPECT_EQ(reasoning, "hm");
  EXPECT_EQ(name, "f");
  EXPECT_EQ(arguments, R"({"a": [1, 2]})");
  EXPECT_EQ(id, message.at("tool_calls").at(0).at("id"));
  EXPECT_EQ(chunks.back().at("choices").at(0).at("finish_reason"), "tool_calls");
}

// A client's stop may cut a call, whose arguments are then no JSON, so it cannot be made.
TEST(ToolCalls, AStopThatCutsACallIsNoCall) {
  const auto reason = [](const std::string& text, bool stop_text, std::optional<TokenId> stop_token) {
    ResponseInfo info = make_info(ApiKind::kChat);
    info.parser = OutputParser::Options{answers_named("hermes"), ReasoningStart::kOff, "call_"};
    info.stop_token_ids = {7};
    Event last = last_event(FinishReason::kStop, {}, text);
    if (stop_text) last.finish->stop_text = "END";
    last.finish->stop_token = stop_token;
    const json reason = whole_choice(info, {last}).at("finish_reason");
    EXPECT_EQ(streamed(info, {last}).back().at("choices").at(0).at("finish_reason"), reason);
    return reason;
  };
  const std::string cut = R"(<tool_call>{"name": "f", "arguments": {"a": [1, )", call = cut + "2]}}</tool_call>";
  EXPECT_EQ(reason(cut, true, {}), "stop");
  EXPECT_EQ(reason(cut, false, 7), "stop");
  EXPECT_EQ(reason(call + cut, true, {}), "stop");
  EXPECT_EQ(reason(call, true, {}), "tool_calls");
  EXPECT_EQ(reason(call, false, 7), "tool_calls");
  EXPECT_EQ(reason(cut, false, 2), "tool_calls") << "the model's own end: the client tells it what is wrong";
}

Event logprob_event() {
  Event event = text_event("ab", {'a', 'b'});
  event.logprobs.push_back({{'a', -0.25f}, {{'a', -0.25f}, {999, -2.0f}}});
  event.logprobs.push_back({{'b', -std::numeric_limits<float>::infinity()}, {}});
  return event;
}

TEST(Logprobs, ChatSchema) {
  EXPECT_EQ(whole_choice(with_logprobs(ApiKind::kChat), {logprob_event()}).at("logprobs"), json::parse(R"({
    "refusal": null, "content": [
    {"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": [
        {"token": "a", "logprob": -0.25, "bytes": [97]}, {"token": "\ufffd", "logprob": -2.0, "bytes": null}]},
    {"token": "b", "logprob": -9999.0, "bytes": [98], "top_logprobs": []}]})"));
}

TEST(Logprobs, CompletionSchemaCountsOffsetsAcrossEvents) {
  const json logprobs =
      whole_choice(with_logprobs(ApiKind::kCompletion), {logprob_event(), logprob_event()}).at("logprobs");
  EXPECT_EQ(logprobs.at("tokens"), json::parse(R"(["a", "b", "a", "b"])"));
  EXPECT_EQ(logprobs.at("token_logprobs"), json::parse("[-0.25, -9999.0, -0.25, -9999.0]"));
  EXPECT_EQ(logprobs.at("text_offset"), json::parse("[0, 1, 2, 3]"));
  EXPECT_EQ(logprobs.at("top_logprobs").at(0), json::parse(R"({"a": -0.25, "\ufffd": -2.0})"));
}

// As in OpenAI's API: the k likeliest, and the token itself if it is not among them.
TEST(Logprobs, CompletionAlternativesHoldTheTokenItself) {
  const auto tops = [](PositionLogprobs position) {
    Event event = text_event("?", {position.chosen.token});
    event.logprobs = {std::move(position)};
    return whole_choice(with_logprobs(ApiKind::kCompletion), {event}).at("logprobs").at("top_logprobs").at(0);
  };
  EXPECT_EQ(tops({{'c', -3.0f}, {{'a', -1.0f}, {'b', -2.0f}}}), json::parse(R"({"a": -1.0, "b": -2.0, "c": -3.0})"));
  EXPECT_EQ(tops({{'c', -3.0f}, {}}), json::parse(R"({"c": -3.0})")) << "logprobs: 0";
  EXPECT_EQ(tops({{'a', -1.0f}, {{'a', -1.0f}, {'b', -2.0f}}}), json::parse(R"({"a": -1.0, "b": -2.0})"));
  // Tokens look alike: the chosen one has the text, then the likeliest other.
  EXPECT_EQ(tops({{1001, -4.0f}, {{999, -1.0f}, {1000, -2.0f}}}),
            json::parse(R"({"token_id:999": -1.0, "token_id:1000": -2.0, "\ufffd": -4.0})"));
  EXPECT_EQ(tops({{'a', -4.0f}, {{999, -1.0f}, {1000, -2.0f}}}),
            json::parse(R"({"\ufffd": -1.0, "token_id:1000": -2.0, "a": -4.0})"));
}

// A character split over tokens counts once. One that is never completed counts as its printed characters.
TEST(Logprobs, OffsetsAreThoseOfTheText) {
  std::vector<Event> events;
  for (const TokenId token : {TokenId{'a'}, 1000, 1001, TokenId{'b'}, 1000, TokenId{'c'}, TokenId{'d'}}) {
    events.push_back(text_event("", {token}));
    events.back().logprobs.push_back({{token, -1.0f}, {}});
  }
  EXPECT_EQ(whole_choice(with_logprobs(ApiKind::kCompletion), events).at("logprobs").at("text_offset"),
            json::parse("[0, 1, 1, 2, 3, 4, 5]"));
}

TEST(Logprobs, StreamsGoWithTheirTokensEvenWithoutText) {
  Event held = logprob_event();
  held.text.clear();
  const auto chunks = streamed(with_logprobs(ApiKind::kChat), {held});
  ASSERT_EQ(chunks.size(), 3u) << "the role, the tokens, the end";
  EXPECT_EQ(chunks[1].at("choices").at(0).at("logprobs").at("content").size(), 2u);
}

}  // namespace
}  // namespace volley::serve
