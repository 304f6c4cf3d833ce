// The run itself: reads the input a second time and keeps `concurrency` lines open, so that what is in memory does not
// grow with the file.
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <array>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "apps/batch/batch.h"
#include "apps/batch/batch_line.h"
#include "apps/batch/progress.h"
#include "apps/exit_codes.h"
#include "apps/generate/line_reader.h"
#include "serve/api.h"

namespace volley::apps {
namespace {

constexpr int kBusy = 429;  // the engine's queue is full

// The request code's warnings (unknown fields), as notes of the program.
class ConsoleSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ConsoleSink(Console* console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    console_->note(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}

  Console* console_;
};

// Numbers of lines whose generations have news. Threads: any.
class Doorbell {
 public:
  void ring(int64_t line) {
    const std::lock_guard lock(mutex_);
    lines_.insert(line);
    changed_.notify_one();
  }
  void wake() {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }
  std::set<int64_t> wait(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return woken_ || !lines_.empty(); });
    woken_ = false;
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> lines_;  // guarded by mutex_
  bool woken_ = false;       // guarded by mutex_
};

serve::ServerOptions api_options(const std::vector<std::string>& served, Console* console) {
  serve::ServerOptions options;
  options.served_model_names = served;
  options.log = std::make_shared<spdlog::logger>("volley", std::make_shared<ConsoleSink>(console));
  return options;
}

// Result lines of different runs, which append to one file, must have different names.
std::string random_prefix() {
  std::random_device device;
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "batch_req_%08x%08x", device(), device());
  return text.data();
}

class BatchRun {
 public:
  BatchRun(Engine& engine, const BatchCommand& command, const std::vector<std::string>& served, BatchFiles* files,
           InterruptWatch* interrupt, Console* console)
      : engine_(engine),
        command_(command),
        files_(*files),
        interrupt_(*interrupt),
        console_(*console),
        api_(engine, api_options(served, console)),
        progress_(console, files->index.lines(), files->index.done(), files->failed),
        id_prefix_(random_prefix()),
        scope_(interrupt, [this] { doorbell_.wake(); }) {}

  int run() {
    auto input = LineReader::open(command_.input);
    if (!input.ok()) failure_ = input.error();
    while (failure_.ok() && !interrupt_.interrupted()) {
      fill(&input.value());
      if (input_ended_ && open_.empty()) break;
      collect();
      keep(files_.results.sync_if_due());
      progress_.show(static_cast<int64_t>(open_.size()));
    }
    open_.clear();  // cancels: a line without an answer is answered by the next run
    keep(files_.results.sync());
    return finish();
  }

 private:
  struct OpenLine {
    std::string custom_id;
    std::shared_ptr<serve::Generation> generation;
  };
  struct InputLine {
    int64_t number = 0;
    std::string custom_id;
    serve::HttpRequest request;
  };

  void fill(LineReader* input) {
    while (failure_.ok() && !interrupt_.interrupted() && static_cast<int>(open_.size()) < command_.concurrency) {
      if (!waiting_) read_next(input);
      if (!waiting_ || !start()) return;
    }
  }

  // Finds the next line without a result and puts it into `waiting_`, unless the answer can be written at once.
  void read_next(LineReader* input) {
    LineReader::Line line;
    while (failure_.ok() && !waiting_ && !input_ended_) {
      const auto state = input->next(&line, 1000);
      if (!state.ok()) {
        failure_ = state.error();
      } else if (*state == LineReader::State::kEnd) {
        input_ended_ = true;
      } else if (*state == LineReader::State::kLine) {
        const int64_t begin = std::exchange(offset_, offset_ + line.bytes);
        if (line.text.find_first_not_of(" \t\r") != std::string::npos) consider(line, begin);
      }
    }
  }

  void consider(const LineReader::Line& line, int64_t begin) {
    const auto id = read_custom_id(line.text);
    const auto state = id.ok() ? files_.index.state(*id, begin) : BatchIndex::State::kUnknown;
    if (state == BatchIndex::State::kDone) return;
    if (state == BatchIndex::State::kUnknown) {
      failure_ = invalid_argument(command_.input + " has changed while it was read: run again.");
      return;
    }
    auto request = read_batch_request(line.text);
    if (const auto* error = std::get_if<LineError>(&request)) {
      write(error_line(result_id(line.number), *id, *error), true);
    } else {
      waiting_ = InputLine{line.number, *id, std::get<serve::HttpRequest>(std::move(request))};
    }
  }

  // False: the engine has no room for `waiting_` before something else ends.
  bool start() {
    const int64_t number = waiting_->number;
    auto reply = api_.handle(waiting_->request, [this, number] { doorbell_.ring(number); });
    if (auto* generation = std::get_if<std::shared_ptr<serve::Generation>>(&reply)) {
      open_.emplace(number, OpenLine{std::move(waiting_->custom_id), std::move(*generation)});
      doorbell_.ring(number);  // its end may have come before it was in `open_`
    } else {
      const auto& response = std::get<serve::HttpResponse>(reply);
      if (response.status == kBusy && !open_.empty()) return false;
      answer(number, waiting_->custom_id, response);
    }
    waiting_.reset();
    return true;
  }

  void collect() {
    for (const int64_t number : doorbell_.wait(std::chrono::milliseconds(200))) {
      const auto line = open_.find(number);
      if (line == open_.end()) continue;
      const auto output = line->second.generation->take();
      if (!output.done) continue;
      progress_.count_tokens(line->second.generation->usage().completion_tokens());
      // Without streaming, what is done has a response.
      answer(number, line->second.custom_id, *output.response);
      open_.erase(line);
    }
  }

  void answer(int64_t number, const std::string& custom_id, const serve::HttpResponse& response) {
    write(response_line(result_id(number), custom_id, response), response.status != 200);
  }

  void write(std::string line, bool failed) {
    keep(files_.results.append(std::move(line)));
    if (failure_.ok()) progress_.count(failed);
  }

  std::string result_id(int64_t number) const { return id_prefix_ + "-" + std::to_string(number); }

  void keep(const Status& status) {
    if (!status.ok() && failure_.ok()) failure_ = status;
  }

  int finish() {
    progress_.finish(engine_.stats());
    if (!failure_.ok()) {
      console_.error(failure_.error().message);
      return kExitUsage;
    }
    if (interrupt_.interrupted()) {
      console_.note("Interrupted: the same command answers the rest.");
      return interrupt_.exit_status();
    }
    return progress_.failed() > 0 ? kExitRequestsFailed : kExitOk;
  }

  Engine& engine_;
  const BatchCommand& command_;
  BatchFiles& files_;
  const InterruptWatch& interrupt_;
  Console& console_;
  serve::Api api_;
  BatchProgress progress_;
  const std::string id_prefix_;
  Doorbell doorbell_;
  std::map<int64_t, OpenLine> open_;  // by line number; its generations ring the doorbell, so it goes first
  std::optional<InputLine> waiting_;  // read, and not started yet
  InterruptScope scope_;
  bool input_ended_ = false;
  int64_t offset_ = 0;  // in the input: of the next line
  Status failure_;      // of reading or writing: ends the run
};

}  // namespace

int answer_batch(Engine& engine, const BatchCommand& command, const std::vector<std::string>& served, BatchFiles* files,
                 InterruptWatch* interrupt, Console* console) {
  return BatchRun(engine, command, served, files, interrupt, console).run();
}

}  // namespace volley::apps
