// Streams are read the same however the network cuts them, and what is not a whole answer says why.
#include "apps/bench/serving/answer_stream.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

using std::chrono::milliseconds;
using Time = AnswerStream::Time;

const std::string kChat =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
    ": a comment\r\n"
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm \"}}],\"usage\":null}\n\n"
    "data:{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"gr\xC3\xBC\xC3\x9F\"}}]}\r\n\r\n"
    "data: "
    "{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\",\"volley\":{\"tokens_per_step\":[3,2]}}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6,"
    "\"prompt_tokens_details\":{\"cached_tokens\":2},"
    "\"completion_tokens_details\":{\"accepted_prediction_tokens\":3,\"rejected_prediction_tokens\":9}}}\n\n"
    "data: [DONE]\n\n";

void expect_whole(const AnswerRecord& record) {
  EXPECT_EQ(record.error, "");
  EXPECT_EQ(record.sample, 4u);
  EXPECT_EQ(record.text, "hm gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(record.prompt_tokens, 5);
  EXPECT_EQ(record.cached_tokens, 2);
  EXPECT_EQ(record.completion_tokens, 6);
  EXPECT_EQ(record.accepted_tokens, 3);
  EXPECT_EQ(record.rejected_tokens, 9);
  EXPECT_EQ(record.verify_steps, 2);
}

TEST(AnswerStream, IsTheSameInAnyPieces) {
  const Time start;
  for (size_t cut = 0; cut <= kChat.size(); ++cut) {
    AnswerStream stream(4, start);
    stream.read(std::string_view(kChat).substr(0, cut), start);
    stream.read(std::string_view(kChat).substr(cut), start);
    expect_whole(stream.end(200, "", start));
  }
}

TEST(AnswerStream, TimesAreThoseOfTheText) {
  const Time start;
  AnswerStream stream(4, start);
  size_t begin = 0;
  int line = 0;
  for (size_t end; (end = kChat.find("\n", begin)) != std::string::npos; begin = end + 1, ++line) {
    stream.read(kChat.substr(begin, end + 1 - begin), start + milliseconds(10 * line));
  }
  const AnswerRecord record = stream.end(200, "", start + milliseconds(500));
  expect_whole(record);
  // The role's empty text is none; "hm " is on line 3, the rest on line 5.
  EXPECT_DOUBLE_EQ(record.ttft_s, 0.030);
  EXPECT_DOUBLE_EQ(record.last_s, 0.050);
  ASSERT_EQ(record.gaps_s.size(), 1u);
  EXPECT_FLOAT_EQ(record.gaps_s[0], 0.020f);
  EXPECT_DOUBLE_EQ(record.e2e_s, 0.5);
}

std::string error_of(const std::string& bytes, int status = 200, const std::string& failure = "") {
  AnswerStream stream(0, Time());
  stream.read(bytes, Time());
  return stream.end(status, failure, Time()).error;
}

TEST(AnswerStream, WhatIsNoWholeAnswerSaysWhy) {
  const size_t usage = kChat.find("data: {\"choices\":[],"), done = kChat.find("data: [DONE]");
  EXPECT_NE(error_of(kChat.substr(0, done)).find("[DONE]"), std::string::npos);
  EXPECT_NE(error_of(kChat.substr(0, usage) + kChat.substr(done)).find("usage"), std::string::npos);
  EXPECT_EQ(error_of("data: {\"error\":{\"message\":\"It broke.\"}}\n\ndata: [DONE]\n\n"), "It broke.");
  EXPECT_EQ(error_of("{\"error\":{\"message\":\"Too many.\"}}", 429), "HTTP 429: Too many.");
  EXPECT_EQ(error_of("<html>", 502), "HTTP 502: <html>");
  EXPECT_EQ(error_of(kChat, 0, "Connection refused"), "Connection refused");
  EXPECT_NE(error_of("data: 5\n\n").find("not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace volley::apps
