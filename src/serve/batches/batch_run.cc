#include "serve/batches/batch_run.h"

#include <chrono>
#include <utility>

#include "serve/http/random_id.h"

namespace volley::serve {
namespace {

constexpr int kBusy = 429;  // the engine's queue is full
constexpr int kUnavailable = 503;
constexpr std::chrono::milliseconds kBeat{200};
constexpr std::chrono::milliseconds kPause{500};

}  // namespace

void BatchRun::Doorbell::ring(int64_t line) {
  const std::lock_guard lock(mutex_);
  lines_.insert(line);
  changed_.notify_one();
}

void BatchRun::Doorbell::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_one();
}

std::set<int64_t> BatchRun::Doorbell::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kBeat, [this] { return woken_ || !lines_.empty(); });
  woken_ = false;
  return std::exchange(lines_, {});
}

BatchRun::BatchRun(std::string input, BatchIndex* index, Hooks hooks, Options options)
    : path_(std::move(input)),
      index_(*index),
      hooks_(std::move(hooks)),
      options_(std::move(options)),
      id_prefix_("batch_req_" + random_id()) {}

Status BatchRun::run() {
  keep(open_input());
  while (going_on()) {
    fill();
    if (input_ended_ && open_.empty() && !waiting_ && again_.empty()) break;
    collect();
    keep(hooks_.beat(open_.size()));
  }
  open_.clear();  // cancels them: the next run answers lines without an answer
  waiting_.reset();
  again_.clear();
  keep(hooks_.beat(0));
  return failure_;
}

Status BatchRun::write_off(const LineError& error) {
  write_off_ = &error;
  keep(open_input());
  while (failure_.ok() && !input_ended_) read_next();
  keep(hooks_.beat(0));
  return failure_;
}

Status BatchRun::open_input() {
  VOLLEY_ASSIGN(LineReader input, LineReader::open(path_));
  input_.reset();
  input_.emplace(std::move(input));
  input_ended_ = false;
  offset_ = 0;
  return {};
}

void BatchRun::fill() {
  while (going_on() && std::chrono::steady_clock::now() >= pause_end_ && hooks_.may_start(open_.size())) {
    if (!waiting_) next();
    if (!waiting_ || !start()) return;
  }
}

void BatchRun::next() {
  if (again_.empty()) return read_next();
  waiting_.emplace(std::move(again_.front()));
  again_.pop_front();
}

// Puts the next line without a result into `waiting_`, unless its answer can be written at once.
void BatchRun::read_next() {
  LineReader::Line line;
  while (failure_.ok() && !waiting_ && !input_ended_) {
    const auto state = input_->next(&line, 1000);
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

void BatchRun::consider(const LineReader::Line& line, int64_t begin) {
  const auto id = read_custom_id(line.text);
  const auto state = id.ok() ? index_.state(*id, begin) : BatchIndex::State::kUnknown;
  if (state == BatchIndex::State::kDone) return;
  if (state == BatchIndex::State::kUnknown) {
    failure_ = invalid_argument(path_ + " has changed while it was read: run again.");
    return;
  }
  if (write_off_) return write(error_line(result_id(line.number), *id, *write_off_), *id, true);
  auto request = read_batch_request(line.text);
  if (auto* read = std::get_if<HttpRequest>(&request); read && !options_.url.empty() && read->target != options_.url) {
    request = LineError{"mismatched_url", "The line's \"url\" is not the batch's \"endpoint\", " + options_.url + "."};
  }
  if (const auto* error = std::get_if<LineError>(&request)) {
    return write(error_line(result_id(line.number), *id, *error), *id, true);
  }
  auto& read = std::get<HttpRequest>(request);
  read.request_id = result_id(line.number);
  waiting_.emplace(line.number, OpenLine{*id, std::move(read), 0, nullptr});
}

// False: the engine has no room for `waiting_` until another request ends.
bool BatchRun::start() {
  auto& [number, line] = *waiting_;
  auto reply = hooks_.ask(line.request, [this, number = number] { doorbell_.ring(number); });
  if (auto* generation = std::get_if<std::shared_ptr<Generation>>(&reply)) {
    line.generation = std::move(*generation);
    doorbell_.ring(number);  // it may have ended before it was in `open_`
    open_.emplace(number, std::move(line));
  } else {
    if (hooks_.stopped()) return false;  // giving up may have caused this reply
    const auto& response = std::get<HttpResponse>(reply);
    if (response.status == kBusy && (!open_.empty() || options_.shares_engine)) {
      if (open_.empty()) pause_end_ = std::chrono::steady_clock::now() + kPause;
      return false;
    }
    if (!try_again(response, number, &line)) answer(number, line, response);
  }
  waiting_.reset();
  return true;
}

void BatchRun::collect() {
  for (const int64_t number : doorbell_.wait()) {
    const auto found = open_.find(number);
    if (found == open_.end()) continue;
    OpenLine& line = found->second;
    const auto output = line.generation->take();
    if (!output.done) continue;
    if (hooks_.count_tokens) hooks_.count_tokens(line.generation->usage().completion_tokens());
    // Without streaming, a finished generation has a response.
    if (!try_again(*output.response, number, &line)) answer(number, line, *output.response);
    open_.erase(found);
  }
}

// A stopping server answers 503, which must not become a line's result.
bool BatchRun::try_again(const HttpResponse& response, int64_t number, OpenLine* line) {
  if (response.status != kUnavailable || line->retries >= options_.retries) return false;
  ++line->retries;
  line->generation.reset();
  again_.emplace_back(number, std::move(*line));
  pause_end_ = std::chrono::steady_clock::now() + kPause;
  return true;
}

void BatchRun::answer(int64_t number, const OpenLine& line, const HttpResponse& response) {
  write(response_line(result_id(number), line.custom_id, response), line.custom_id, response.status != 200);
}

void BatchRun::write(std::string line, const std::string& custom_id, bool failed) {
  keep(hooks_.write(std::move(line), failed));
  if (failure_.ok()) index_.mark_done(custom_id);
}

}  // namespace volley::serve
