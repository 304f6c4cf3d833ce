#include "engine/device_process.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "device/fault.h"
#include "engine/node_setup.h"

namespace volley::engine {
namespace {

constexpr size_t kFlushBytes = 64 << 10;
constexpr std::chrono::minutes kMostSilence(5);         // while it loads
constexpr std::chrono::milliseconds kBetweenLooks(50);  // at what it says
constexpr std::chrono::seconds kForTheCause(5);         // for it to have ended

}  // namespace

DeviceProcess::DeviceProcess(const EngineOptions& options, const ResolvedModels& models)
    : ranks_(models.ranks),
      vocab_(models.target.decoder.vocab),
      mask_timeout_(options.grammar_mask_timeout_ms),
      groups_(models.kv.groups) {}

DeviceProcess::~DeviceProcess() = default;

// What the options left open is open no more: the process may be started again when a GPU is missing, or when others
// have taken memory.
Result<nodes::Assignment> DeviceProcess::assignment(const EngineOptions& options, const ResolvedModels& models) {
  nodes::Assignment assignment;
  VOLLEY_ASSIGN(assignment.facts, node_facts(options, models));
  assignment.options = options;
  assignment.options.data_parallel_size = 1;  // its part of what they share is told
  const DeviceChoice& device = models.device;
  assignment.options.device = device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.ordinal);
  assignment.available_bytes = device.available_bytes;
  assignment.sizes = sizes_of(models);
  return assignment;
}

Result<std::unique_ptr<DeviceProcess>> DeviceProcess::start(const EngineOptions& options, const ResolvedModels& models,
                                                            const nodes::Assignment& assignment,
                                                            const Progress& progress,
                                                            const std::function<bool()>& attend) {
  std::unique_ptr<DeviceProcess> process(new DeviceProcess(options, models));
  VOLLEY_ASSIGN(process->child_, ChildProcess::start(options.device_command));
  nodes::append_assignment(process->out_, assignment);
  VOLLEY_RETURN_IF_ERROR(process->load(progress, attend));
  return process;
}

Status DeviceProcess::load(const Progress& progress, const std::function<bool()>& attend) {
  try {
    flush();
    for (;;) {
      if (attend && !attend()) return Error{ErrorCode::kCancelled, "The engine ends."};
      const net::Deadline silent = net::after(kMostSilence);
      while (!child_->connection().has_news(net::after(kBetweenLooks)) && std::chrono::steady_clock::now() < silent) {
        if (attend && !attend()) return Error{ErrorCode::kCancelled, "The engine ends."};
      }
      VOLLEY_ASSIGN(nodes::Reply reply, receive(silent));
      if (const auto* loading = std::get_if<nodes::Loading>(&reply)) {
        if (progress) progress(loading->phase, loading->fraction);
      } else if (auto* traits = std::get_if<nodes::Traits>(&reply)) {
        traits_ = std::move(*traits);
      } else if (const auto* ready = std::get_if<nodes::Ready>(&reply)) {
        ready_ = *ready;
        return {};
      } else {
        return Error{ErrorCode::kUnavailable, "The process that computes says what it was not asked."};
      }
    }
  } catch (const DeviceFault& fault) {
    return Error{ErrorCode::kUnavailable, fault.what()};
  }
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
  nodes::append_end(out_);
  (void)child_->connection().send(out_);  // who is gone needs no end
  out_.clear();
}

bool DeviceProcess::interrupt(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (interrupted_.empty()) interrupted_ = why;
  }
  child_->kill();
  child_->connection().shut_down();  // a driver may let it end much later
  return true;
}

std::string DeviceProcess::why_gone(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!interrupted_.empty()) return interrupted_;
  }
  const std::string how = child_->ended_within(kForTheCause);
  return "The process that computes is gone: " + (how.empty() ? error.message : how) + ".";
}

void DeviceProcess::flush() {
  if (out_.empty()) return;
  const Status sent = child_->connection().send(out_);
  out_.clear();
  if (sent.ok()) return;
  // Its last words may be there.
  while (receive(net::after(kForTheCause)).ok()) {
  }
  throw DeviceFault(why_gone(sent.error()));
}

void DeviceProcess::append_done() {
  if (out_.size() >= kFlushBytes) flush();
}

// Throws DeviceFault where it is gone, and where it says that it fails. The error: it says nothing in time.
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

template <typename T>
T DeviceProcess::take() {
  flush();
  for (;;) {
    Result<nodes::Reply> reply = receive(std::nullopt);
    if (auto* wanted = std::get_if<T>(&*reply)) return std::move(*wanted);
    const auto* question = std::get_if<nodes::MaskQuestion>(&*reply);
    if (question == nullptr) throw DeviceFault("The process that computes answers something else than it was asked.");
    answer(*question);
  }
}

// Its step waits for them.
void DeviceProcess::answer(const nodes::MaskQuestion& question) {
  if (question.drafted.size() != asked_.size() || mask_threads_ == nullptr) {
    throw DeviceFault("The process that computes asks for masks of another step.");
  }
  const int32_t mask_words = (vocab_ + 31) / 32;
  size_t rows = 0;
  for (const auto& drafted : question.drafted) rows += drafted.size() + 1;
  std::vector<uint32_t> words(rows * static_cast<size_t>(mask_words));
  std::vector<spec::MaskThreads::Task> tasks;
  uint32_t* to = words.data();
  for (size_t i = 0; i < asked_.size(); ++i) {
    const std::vector<TokenId>& drafted = question.drafted[i];
    tasks.push_back({asked_[i], drafted, to});
    to += (drafted.size() + 1) * static_cast<size_t>(mask_words);
  }
  mask_threads_->fill(tasks, mask_words);
  nodes::append_masks(out_, words);
  flush();
}

Status DeviceProcess::start_slot(int32_t slot, const spec::SlotStart& start) {
  nodes::append_start_slot(out_, slot, start);
  return take<nodes::Answer>().status;
}

void DeviceProcess::clear_slot(int32_t slot) {
  nodes::append_clear_slot(out_, slot);
  append_done();
}

void DeviceProcess::set_page(int32_t slot, size_t group, int32_t index, PageId page) {
  nodes::append_set_page(out_, slot, group, index, page);
  append_done();
}

void DeviceProcess::save_state(int32_t slot, PageId snapshot) {
  nodes::append_save_state(out_, slot, snapshot);
  append_done();
}

void DeviceProcess::restore_state(PageId snapshot, int32_t slot) {
  nodes::append_restore_state(out_, snapshot, slot);
  append_done();
}

void DeviceProcess::copy_page(size_t group, PageId from, PageId to) {
  nodes::append_copy_page(out_, group, from, to);
  append_done();
}

Status DeviceProcess::enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget) {
  std::vector<std::shared_ptr<spec::MaskSource>> asked;
  for (const spec::RoundSegment& segment : segments) {
    if (segment.masks != nullptr) asked.push_back(segment.masks);
  }
  if (!asked.empty() && mask_threads_ == nullptr) {
    VOLLEY_ASSIGN(mask_threads_, spec::MaskThreads::create(mask_timeout_));
  }
  if (asks_.must_ask(segments)) {
    nodes::append_reserve(out_, segments);
    VOLLEY_RETURN_IF_ERROR(take<nodes::Answer>().status);
    asks_.granted();
  }
  nodes::append_enqueue(out_, segments, budget, depth() == 1);
  flush();
  asked_ = std::move(asked);
  steps_.push_back(segments.size());
  return {};
}

spec::StepTimes DeviceProcess::wait(std::vector<spec::RoundResult>& results) {
  VOLLEY_CHECK(!steps_.empty());
  if (depth() > 1) nodes::append_wait(out_);
  auto step = take<nodes::StepResults>();
  if (step.results.size() != steps_.front()) {
    throw DeviceFault("The process that computes brings the results of another step.");
  }
  steps_.pop_front();
  asked_.clear();
  results = std::move(step.results);
  phases_ = step.phases;
  experts_touched_ = step.experts_touched;
  return step.times;
}

void DeviceProcess::discard(std::shared_ptr<spec::MaskSource> source) {
  if (mask_threads_) mask_threads_->discard(std::move(source));
}

void DeviceProcess::take_part() {
  VOLLEY_CHECK(false);  // lockstep() is nobody's
}

}  // namespace volley::engine
