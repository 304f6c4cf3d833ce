// Runs a batch's lines through the engine, for `volley batch` and /v1/batches.
#pragma once

#include <volley/result.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <variant>

#include "base/line_reader.h"
#include "serve/api/generation.h"
#include "serve/batches/batch_index.h"
#include "serve/batches/batch_line.h"

namespace volley::serve {

using BatchReply = std::variant<HttpResponse, std::shared_ptr<Generation>>;

// Reads the input a second time and keeps some lines open, so that memory does not grow with the file. Threads: one,
// except wake(). The hooks run on it.
class BatchRun {
 public:
  struct Hooks {
    // Starts a line. `wake` may be called on any thread until the reply's generation is gone.
    std::function<BatchReply(const HttpRequest&, std::function<void()> wake)> ask;
    std::function<bool(size_t open)> may_start;  // whether one more line may start
    // Stores a result line. An error ends the run.
    std::function<Status(std::string line, bool failed)> write;
    // Called about five times a second, and at the end. An error ends the run.
    std::function<Status(size_t open)> beat;
    std::function<bool()> stopped;
    std::function<void(int64_t tokens)> count_tokens = {};  // gets an answer's tokens
  };
  struct Options {
    std::string url = {};  // the URL that every line must have; empty: any batch URL
    // How often a line is sent again after a 503, which a stopping or busy server gives. The last reply is its result.
    int retries = 0;
    // Others use the engine's queue, too: a line waits for a full one, even if no other line is open.
    bool shares_engine = false;
  };

  // `index` lists the lines of `input`, with done ones marked. The run marks its own.
  BatchRun(std::string input, BatchIndex* index, Hooks hooks, Options options);
  BatchRun(const BatchRun&) = delete;

  // Runs until every line has a result, or until stopped(). Open lines are then given up for the next run.
  Status run();
  // Gives this result to every line without one.
  Status write_off(const LineError& error);
  // Call when stopped() has changed. Any thread.
  void wake() { doorbell_.wake(); }

 private:
  // Numbers of lines whose generations have news. Threads: any.
  class Doorbell {
   public:
    void ring(int64_t line);
    void wake();
    std::set<int64_t> wait();

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<int64_t> lines_;  // guarded by mutex_
    bool woken_ = false;       // guarded by mutex_
  };
  struct OpenLine {
    std::string custom_id;
    HttpRequest request;
    int retries = 0;
    std::shared_ptr<Generation> generation;
  };

  Status open_input();
  void fill();
  void next();
  void read_next();
  void consider(const LineReader::Line& line, int64_t begin);
  bool start();
  void collect();
  void answer(int64_t number, const OpenLine& line, const HttpResponse& response);
  void write(std::string line, const std::string& custom_id, bool failed);
  bool going_on() const { return failure_.ok() && !hooks_.stopped(); }
  bool try_again(const HttpResponse& response, int64_t number, OpenLine* line);
  std::string result_id(int64_t number) const { return id_prefix_ + "-" + std::to_string(number); }
  void keep(const Status& status) {
    if (!status.ok() && failure_.ok()) failure_ = status;
  }

  const std::string path_;
  BatchIndex& index_;
  const Hooks hooks_;
  const Options options_;
  const std::string id_prefix_;
  Doorbell doorbell_;
  std::map<int64_t, OpenLine> open_;  // by line number; declared behind the doorbell, which its generations ring
  std::optional<std::pair<int64_t, OpenLine>> waiting_;  // read, but not started
  std::deque<std::pair<int64_t, OpenLine>> again_;       // to be sent again, from pause_end_ on
  std::chrono::steady_clock::time_point pause_end_{};
  std::optional<LineReader> input_;
  const LineError* write_off_ = nullptr;
  bool input_ended_ = false;
  int64_t offset_ = 0;  // the next line's, in the input
  Status failure_;      // a failed read or write, which ends the run
};

}  // namespace volley::serve
