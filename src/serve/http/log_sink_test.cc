// Protects the server against its log: a stuck reader must cost counted lines, and nothing else.
#include "serve/http/log_sink.h"

#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>

#include "serve/testing/client.h"
#include "serve/testing/server_helpers.h"

namespace volley::serve {
namespace {

using nlohmann::json;

class Pipe {
 public:
  Pipe() {
    EXPECT_EQ(::pipe(ends_), 0);
    EXPECT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);  // as in the program
  }
  // The writing end stays open, because the sink's thread may still be in a write.
  ~Pipe() { close_reader(); }
  int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  // Reads until `text` came.
  std::string read_until(const std::string& text) const {
    std::string all;
    char buffer[4096];
    while (all.find(text) == std::string::npos) {
      const ssize_t size = ::read(ends_[0], buffer, sizeof buffer);
      if (size <= 0) break;
      all.append(buffer, static_cast<size_t>(size));
    }
    return all;
  }

 private:
  int ends_[2] = {-1, -1};
};

std::shared_ptr<spdlog::logger> make_logger(std::shared_ptr<LogSink> sink) {
  auto logger = std::make_shared<spdlog::logger>("volley", std::move(sink));
  logger->set_pattern("%v");
  return logger;
}

int64_t numbers_in(const std::string& text) {
  int64_t count = 0;
  for (size_t at = 0; (at = text.find("number ", at)) != std::string::npos; ++at) ++count;
  return count;
}

// The logging thread would hang here if it wrote by itself.
TEST(LogSink, LinesThatNobodyTakesAreDroppedCountedAndReported) {
  constexpr int kLines = 20'000;
  const Pipe pipe;
  auto sink = std::make_shared<LogSink>(pipe.writer(), LogFormat::kText, 10'000);
  const auto logger = make_logger(sink);
  for (int i = 0; i < kLines; ++i) logger->info("number {}", i);
  const int64_t dropped = sink->dropped();
  EXPECT_GT(dropped, 0);
  // The reader then gets the lines up to a gap, the gap's size, and the later lines.
  std::string text;
  std::thread reader([&] { text = pipe.read_until("the end\n"); });
  EXPECT_TRUE(eventually([&] {
    const int64_t before = sink->dropped();
    logger->info("the end");
    return sink->dropped() == before;
  }));
  reader.join();
  const std::regex notice("\n([0-9]+) lines of the log were dropped here: ");
  int64_t reported = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), notice), end; it != end; ++it)
    reported += std::stoll((*it)[1]);
  EXPECT_EQ(reported, sink->dropped());
  EXPECT_EQ(numbers_in(text) + dropped, kLines) << "no line is lost unsaid";
}

TEST(LogSink, EndsWithItsLogUnread) {
  static const Pipe pipe;  // the stuck thread still writes to it, so its number must not be reused
  {
    const auto logger = make_logger(std::make_shared<LogSink>(pipe.writer(), LogFormat::kText));
    for (int i = 0; i < 20'000; ++i) logger->info("number {}", i);
  }
  SUCCEED() << "the destructor returned";
}

TEST(LogSink, WhatWasLoggedIsThereAtTheEnd) {
  const Pipe pipe;
  {
    const auto logger = make_logger(std::make_shared<LogSink>(pipe.writer(), LogFormat::kText));
    for (int i = 0; i < 100; ++i) logger->info("number {}", i);
  }
  EXPECT_EQ(numbers_in(pipe.read_until("number 99\n")), 100);
}

TEST(LogSink, AReaderThatLeftCostsLinesOnly) {
  Pipe pipe;
  pipe.close_reader();
  const auto sink = std::make_shared<LogSink>(pipe.writer(), LogFormat::kText);
  const auto logger = make_logger(sink);
  for (int i = 0; i < 10; ++i) logger->info("number {}", i);
  EXPECT_TRUE(eventually([&] { return sink->dropped() == 10; }));
}

TEST(LogSink, TheReportIsARecordWhereTheLogIsJson) {
  const Pipe pipe;
  auto sink = std::make_shared<LogSink>(pipe.writer(), LogFormat::kJson, 200);
  auto logger = make_logger(sink);
  logger->info(std::string(500, 'x'));
  EXPECT_EQ(sink->dropped(), 1);
  logger.reset();
  sink.reset();
  const json record = json::parse(pipe.read_until("\n"));
  EXPECT_EQ(record.at("level"), "warning");
  EXPECT_TRUE(record.at("message").get<std::string>().starts_with("1 lines of the log were dropped"));
}

// Without the sink every thread of the server stood in a write after some hundred requests.
TEST(LogSink, AServerGoesOnAndSaysInItsMetricsWhatItDropped) {
  const Pipe pipe;
  FakeEngine engine;
  ServerOptions options = make_options();
  auto sink = std::make_shared<LogSink>(pipe.writer(), options.log_format, 10'000);
  options.log = std::make_shared<spdlog::logger>("volley", sink);
  options.log_sink = sink;
  const auto server = start_server(engine, options);
  Client client(server->port());
  for (int i = 0; i < 2000; ++i) {
    const auto response = client.get("/v1/models");
    ASSERT_EQ(response.status, 200);
  }
  EXPECT_GT(sink->dropped(), 0);
  const auto metrics = client.get("/metrics");
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(metrics.body, found, std::regex("\nvolley:log_lines_dropped_total\\{.*\\} ([0-9]+)\n")));
  EXPECT_GT(std::stoll(found[1].str()), 0);
}

}  // namespace
}  // namespace volley::serve
