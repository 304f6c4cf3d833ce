// The one thread that owns models, slots, pages and requests. Commands come in through a queue; each pass of the loop
// takes them, plans a step, runs the round and hands out what it produced.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <variant>

#include "engine/models.h"
#include "engine/request_output.h"
#include "sched/scheduler.h"
#include "spec/round.h"

namespace volley::engine {

struct WorkerParts {
  std::unique_ptr<Device> device;
  LoadedModels models;
  std::unique_ptr<spec::Round> round;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<TokenId> eos_ids;
  sched::SchedulerConfig scheduler;
  int32_t max_queue = 0;  // waiting requests
};

// A request that passed every check.
struct Admission {
  RequestId id = 0;
  GenerateRequest request;  // max_tokens resolved, seed drawn
  EventSink sink;
  RequestOutput::Clock::time_point submitted;
};

class Worker {
 public:
  explicit Worker(WorkerParts parts);
  ~Worker();  // cancels every request, then joins

  // Any thread. kResourceExhausted when the queue is full, kUnavailable while ending.
  Status submit(Admission admission);
  void cancel(RequestId id);
  void drop_prefix_cache();
  EngineStats stats() const;

 private:
  struct Cancel {
    RequestId id;
  };
  struct DropPrefixCache {};
  using Command = std::variant<Admission, Cancel, DropPrefixCache>;

  struct Request {
    spec::SlotStart start;  // spans are filled when a slot is taken
    RequestOutput output;
    std::optional<int32_t> slot;
  };

  // Below: the engine's thread only.
  void loop();
  bool take_commands(std::deque<Command>& commands);  // waits while idle; false when the engine ends
  void handle(Command command);
  void handle(Admission admission);
  void step();
  void apply_plan(const sched::StepPlan& plan);
  void hand_out(const sched::StepPlan& plan, std::vector<spec::RoundResult>& results);
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  void release_slot(Request& request);
  void count(const sched::PlannedSegment& segment, const spec::RoundResult& result);
  void publish_stats();

  WorkerParts parts_;
  sched::Scheduler scheduler_;
  std::unordered_map<RequestId, Request> requests_;
  EngineStats totals_;  // counters; gauges are filled in by publish_stats()
  std::vector<spec::RoundSegment> segments_;
  std::vector<spec::RoundResult> results_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Command> commands_;  // guarded by mutex_
  size_t queued_ = 0;             // admissions in commands_ or waiting; guarded by mutex_
  bool stopping_ = false;         // guarded by mutex_
  EngineStats published_;         // guarded by mutex_
  std::thread thread_;            // last: starts when everything above exists
};

}  // namespace volley::engine
