#include "engine/remote/device_process.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "device/fault.h"
#include "engine/remote/node_setup.h"

namespace volley::engine {
namespace {

constexpr size_t kFlushBytes = 64 << 10;
constexpr std::chrono::milliseconds kBetweenLooks(50);  // at what it says
constexpr std::chrono::seconds kForTheRest(10);         // of a message that has begun
constexpr std::chrono::seconds kForItsEnd(5);           // for it to have ended

}  // namespace

DeviceProcess::DeviceProcess(const EngineOptions& options, const ResolvedModels& models)
    : Executor(models), mask_timeout_(options.grammar_mask_timeout_ms), groups_(models.kv.groups) {}

DeviceProcess::~DeviceProcess() = default;

// Fixes what the options left open. The process may start again when a GPU is missing, or when others have taken
// memory, and must load the same.
Result<nodes::Assignment> DeviceProcess::assignment(const EngineOptions& options, const ResolvedModels& models) {
  nodes::Assignment assignment;
  VOLLEY_ASSIGN(assignment.facts, node_facts(options, models));
  assignment.options = options;
  assignment.options.data_parallel_size = 1;  // the assignment already has its part of the threads and devices
  const DeviceChoice& device = models.device;
  assignment.options.device = device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.ordinal);
  assignment.available_bytes = device.available_bytes;
  assignment.sizes = sizes_of(models);
  return assignment;
}

Result<std::unique_ptr<DeviceProcess>> DeviceProcess::start(const EngineOptions& options, const ResolvedModels& models,
                                                            const nodes::Assignment& assignment,
                                                            const Loading& loading) {
  std::unique_ptr<DeviceProcess> process(new DeviceProcess(options, models));
  VOLLEY_ASSIGN(process->child_, ChildProcess::start(options.device_command));
  nodes::append_assignment(process->out_, assignment);
  const Status loaded = process->load(loading);
  if (!loaded.ok()) process->child_->kill();  // it need not end by itself
  VOLLEY_RETURN_IF_ERROR(loaded);
  return process;
}

Status DeviceProcess::load(const Loading& loading) {
  try {
    flush();
    for (;;) {
      VOLLEY_RETURN_IF_ERROR(wait_for_news(loading));
      VOLLEY_ASSIGN(nodes::Reply reply, receive(net::after(kForTheRest)));
      if (const auto* news = std::get_if<nodes::Loading>(&reply)) {
        if (loading.progress) loading.progress(news->phase, news->fraction);
      } else if (auto* ready = std::get_if<nodes::Ready>(&reply)) {
        ready_ = std::move(*ready);
        traits_ = ready_.traits;
        return {};
      } else {
        return Error{ErrorCode::kUnavailable, "The process that computes says what it was not asked."};
      }
    }
  } catch (const DeviceFault& fault) {
    return Error{ErrorCode::kUnavailable, fault.what()};
  }
}

// A slow disk can keep the process silent for long, so its reading counts as news. Time in which this process was
// stopped does not count, because then both were stopped.
Status DeviceProcess::wait_for_news(const Loading& loading) {
  using Clock = std::chrono::steady_clock;
  uint64_t read = child_->read_so_far();
  Clock::duration silent(0);
  for (Clock::time_point last = Clock::now(); !child_->connection().has_news(net::after(kBetweenLooks));) {
    if (loading.attend && !loading.attend()) return Error{ErrorCode::kCancelled, "The engine ends."};
    const Clock::time_point now = Clock::now();
    const uint64_t read_before = std::exchange(read, child_->read_so_far());
    silent =
        read == read_before ? silent + std::min<Clock::duration>(now - last, 2 * kBetweenLooks) : Clock::duration();
    last = now;
    if (loading.most_silence.count() == 0 || silent < loading.most_silence) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(loading.most_silence).count();
    return Error{ErrorCode::kUnavailable, "The process that computes hangs: it has read and reported nothing for " +
                                              std::to_string(seconds) +
                                              " s while it loads. Where that can be, raise --step-timeout."};
  }
  return {};
}

void DeviceProcess::watch_processes(std::function<void(const std::string&)> on_lost) {
  if (!on_lost) return child_->watch({});
  child_->watch([this, on_lost = std::move(on_lost)](const std::string& how) {
    std::unique_lock lock(mutex_);
    const std::string why = interrupted_.empty() ? "The process that computes is gone: " + how + "." : interrupted_;
    lock.unlock();
    on_lost(why);
  });
}

void DeviceProcess::end_processes() {
  nodes::append_call(out_, nodes::End{});
  (void)child_->connection().send(out_);  // a lost process needs no end message
  out_.clear();
}

bool DeviceProcess::interrupt(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_.empty()) interrupted_ = why;
  }
  child_->kill();
  child_->connection().shut_down();  // a driver may delay its end
  return true;
}

std::string DeviceProcess::why_gone(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!interrupted_.empty()) return interrupted_;
  }
  const std::string how = child_->ended_within(kForItsEnd);
  return "The process that computes is gone: " + (how.empty() ? error.message : how) + ".";
}

void DeviceProcess::flush() {
  if (out_.empty()) return;
  const Status sent = child_->connection().send(out_);
  out_.clear();
  if (sent.ok()) return;
  // Its last words may be there.
  while (receive(net::after(kForItsEnd)).ok()) {
  }
  throw DeviceFault(why_gone(sent.error()));
}

// Throws DeviceFault when the process is gone or reports a failure. Error: no message came in time.
Result<nodes::Reply> DeviceProcess::receive(std::optional<net::Deadline> deadline) {
  const Result<net::Frame> frame = net::receive_frame(child_->connection(), nodes::kMostProcessReplyBytes, deadline);
  if (!frame.ok()) {
    if (deadline && std::chrono::steady_clock::now() >= *deadline) {
      return Error{ErrorCode::kUnavailable, "The process that computes has been silent for too long."};
    }
    throw DeviceFault(why_gone(frame.error()));
  }
  Result<nodes::Reply> reply = nodes::read_reply(*frame);
  if (!reply.ok()) throw DeviceFault("The process that computes is broken: " + reply.error().message);
  if (const auto* failed = std::get_if<nodes::Failed>(&*reply)) throw DeviceFault(failed->sentence);
  return reply;
}

// The process's step waits for these masks.
void DeviceProcess::answer(const nodes::MaskQuestion& question) {
  if (steps_.empty() || question.drafted.size() != steps_.front().masks.size() || mask_threads_ == nullptr) {
    throw DeviceFault("The process that computes asks for masks of another step.");
  }
  const int32_t mask_words = (vocab_ + 31) / 32;
  size_t rows = 0;
  for (const auto& drafted : question.drafted) rows += drafted.size() + 1;
  std::vector<uint32_t> words(rows * static_cast<size_t>(mask_words));
  std::vector<decode::MaskThreads::Task> tasks;
  uint32_t* to = words.data();
  std::vector<std::shared_ptr<decode::MaskSource>>& sources = steps_.front().masks;
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::vector<TokenId>& drafted = question.drafted[i];
    tasks.push_back({std::move(sources[i]), drafted, to});
    to += (drafted.size() + 1) * static_cast<size_t>(mask_words);
  }
  mask_threads_->fill(tasks, mask_words);
  sources.clear();
  nodes::append_call(out_, nodes::Masks{std::move(words)});
  flush();
}

decode::Answer DeviceProcess::perform(const decode::Command& command) {
  if (const auto* step = std::get_if<decode::Enqueue>(&command)) return enqueue_step(*step);
  if (std::holds_alternative<decode::Wait>(command)) return take_results();
  nodes::append_call(out_, command);
  if (decode::is_answered(command)) return take_answer(command);
  if (out_.size() >= kFlushBytes || std::holds_alternative<decode::FillMasks>(command)) flush();
  return {};
}

decode::Answer DeviceProcess::take_answer(const decode::Command& command) {
  flush();
  for (;;) {
    Result<nodes::Reply> reply = receive(std::nullopt);
    auto* wanted = std::get_if<nodes::Answer>(&*reply);
    if (wanted != nullptr && decode::fits(wanted->answer, command)) return std::move(wanted->answer);
    const auto* question = std::get_if<nodes::MaskQuestion>(&*reply);
    if (question == nullptr) throw DeviceFault("The process that computes answers something else than it was asked.");
    answer(*question);
  }
}

Status DeviceProcess::enqueue_step(const decode::Enqueue& step) {
  Step sent = {step.segments.size(), {}};
  for (const decode::RoundSegment& segment : step.segments) {
    if (segment.masks != nullptr) sent.masks.push_back(segment.masks);
  }
  if (!sent.masks.empty() && mask_threads_ == nullptr) {
    VOLLEY_ASSIGN(mask_threads_, decode::MaskThreads::create(mask_timeout_));
  }
  VOLLEY_RETURN_IF_ERROR(reserve(step.segments));
  nodes::append_call(out_, step);
  if (depth() == 1) nodes::append_call(out_, decode::Wait{});
  flush();
  steps_.push_back(std::move(sent));
  return {};
}

decode::StepResults DeviceProcess::take_results() {
  VOLLEY_CHECK(!steps_.empty());
  const decode::Command wait = decode::Wait{};
  if (depth() > 1) nodes::append_call(out_, wait);
  auto step = std::get<decode::StepResults>(take_answer(wait));
  if (step.results.size() != steps_.front().segments) {
    throw DeviceFault("The process that computes brings the results of another step.");
  }
  steps_.pop_front();
  phases_ = step.phases;
  experts_touched_ = step.experts_touched;
  return step;
}

void DeviceProcess::discard(std::shared_ptr<decode::MaskSource> source) {
  if (mask_threads_) mask_threads_->discard(std::move(source));
}

}  // namespace volley::engine
