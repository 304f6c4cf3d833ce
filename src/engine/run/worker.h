// The one thread that owns models, slots, pages and requests. Commands come in
// through a queue; each pass of the loop takes them, plans a step and enqueues
// it, and hands out what the oldest step under way produced. On a device that
// runs ahead, that is the step before: the device never waits for the host.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <variant>

#include "decode/round.h"
#include "engine/run/acceptance_watch.h"
#include "engine/run/executor.h"
#include "engine/run/grammar_masks.h"
#include "engine/run/open_requests.h"
#include "engine/run/plan_deadline.h"
#include "engine/run/queue_places.h"
#include "engine/run/request_output.h"
#include "engine/run/step_timeout.h"
#include "engine/run/verify_control.h"
#include "engine/run/watchdog.h"
#include "engine/start/models.h"
#include "sched/scheduler.h"

namespace volley::engine {

struct WorkerParts {
  std::unique_ptr<Executor> replica;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<TokenId> eos_ids;
  sched::SchedulerConfig scheduler;
  double target_step_s = 0;  // sched::TargetStep
  int32_t max_queue = 0;     // waiting requests
  VerifyPolicy verify;
  std::optional<decode::CostModel> costs;  // measured for VerifyPolicy::Kind::kAuto
  DrafterTraits drafter;
  std::function<void(const std::string&)> on_warning;  // or empty
  StepTimeout step_timeout;
  // Makes `replica` anew after a fault, with as many pages; empty: a fault ends the engine. As EngineOptions has it.
  // Calls `attend` several times a second where it can, on this thread, and gives up (kCancelled) once that says no.
  using Attend = std::function<bool()>;
  std::function<Result<std::unique_ptr<Executor>>(const Attend& attend)> remake;
  double least_between_faults_s = 60;  // from one that was mended; the next within that ends the engine
  std::function<void(const std::string&)> on_device_failure;  // or empty
  // On the engine's thread, or empty. Between two steps: what became of the prefix cache (REQUIRES: the scheduler makes
  // events) by all requests that have ended, perhaps nothing. And before the replica
  // is made anew, and once it works.
  std::function<void(std::span<const CacheEvent>)> on_published;
  std::function<void(bool begins)> on_restart;
};

// A request that passed every check.
struct Admission {
  RequestId id = 0;
  GenerateRequest request;                 // max_tokens resolved, seed drawn
  std::unique_ptr<text::Matcher> matcher;  // of request.grammar, or null
  EventSink sink;
  RequestOutput::Clock::time_point submitted;
};

class Worker {
 public:
  explicit Worker(WorkerParts parts);
  ~Worker();    // cancels every request, then joins
  void stop();  // begins with that
  void join();  // goes on until the thread has ended

  // Any thread. kResourceExhausted when the queue is full, kUnavailable while
  // ending and when the device has failed.
  Status submit(Admission admission);
  void cancel(RequestId id);
  void drop_prefix_cache();
  void set_verify(const VerifyPolicy& policy);  // REQUIRES: WorkerParts::costs, for kAuto
  void set_target_step(double seconds);         // sched::TargetStep
  EngineStats stats() const;
  FairSpace queued() const;  // requests that wait

  // Ends every open request with this failure of the device, and takes no more. What comes after the first call does
  // nothing.
  void give_up(const std::string& failure);

 private:
  struct Cancel {
    RequestId id;
  };
  struct DropPrefixCache {};
  using Command = std::variant<Admission, Cancel, DropPrefixCache, VerifyPolicy, sched::TargetStep>;

  struct Request {
    decode::SlotStart start;  // spans are filled when a slot is taken
    RequestOutput output;
    std::shared_ptr<GrammarMasks> grammar;  // with the request's other rules on tokens; null: none
    int32_t prompt_logprobs;                // -1: none; else how many of the highest
    std::optional<SimulatedAcceptance> simulate;
    std::optional<RequestOutput::Clock::time_point> deadline;
    int64_t decoding_steps = 0;  // planned so far
    int32_t counted_prompt = 0;  // tokens of it that totals_ has
    std::optional<int32_t> slot = std::nullopt;
  };
  using Requests = std::unordered_map<RequestId, Request>;

  // A planned step on its way.
  struct Flight {
    sched::StepPlan plan;
    VerifyStep verify;
    bool enqueued = true;  // false: nobody was left in it
    double timeout = 0;    // what it may take beside the least
  };

  // Below: the engine's thread only.
  void loop();
  bool run_until_fault();  // true: the device was mended, and requests go on
  void run();              // until the engine ends, or throws DeviceFault
  bool take_commands();    // into pending_; waits while idle, and for PlanDeadline; false when the engine ends
  void handle(Command command);
  void handle(Admission admission);
  void move_commands();
  void handle_pending();
  bool attend();                                              // to commands, between steps; false: the engine ends
  void end_late();                                            // whose deadline is over
  void take_part();                                           // in a pass of other replicas
  void follow_to_the_end();                                   // as long as others begin any
  void erase(std::span<const RequestId> ids);                 // REQUIRES: they are open
  std::optional<int32_t> forget(Requests::iterator request);  // its slot, if it had one, for the caller to clear
  void end(RequestId id, FinishReason reason, std::optional<Error> error);
  std::optional<int32_t> take_slot(Request& request);
  void release_slot(Request& request);
  void publish_stats();
  void count_queued();
  // worker_step.cc
  void step();
  bool plans_late() const;   // whether PlanDeadline has a say
  bool plans_later() const;  // it says so now
  void set(const sched::TargetStep& target);
  sched::PromptBudget budget_beside(double decoding_s) const;  // of prompts
  bool start_step();   // plans and enqueues one; false when there is nothing to enqueue now
  void finish_step();  // waits for the oldest one
  void fill_masks();   // of the oldest one, once all before it are handed out
  void enqueue(sched::StepPlan& plan, VerifyStep& verify);
  decode::RoundSegment segment_of(const sched::PlannedSegment& planned);
  void observe(const Flight& flight, const decode::StepTimes& times);
  void apply_plan(sched::StepPlan& plan);
  Status start_slot(Request& request, const sched::PlannedSegment& started);
  void hand_out(const sched::StepPlan& plan, std::vector<decode::RoundResult>& results);
  void add_prompt_logprobs(const sched::PlannedSegment& segment, Request& request, decode::RoundResult& result);
  void count_prompt(RequestId id, Request& request, int32_t computed);
  void count(bool decodes, const decode::RoundResult& result);
  void watch(const Request& request, const decode::RoundResult& result);
  // worker_faults.cc
  bool recover(const std::string& fault);  // true: run() can go on
  Status restart();
  Result<std::unique_ptr<Executor>> remake();
  bool is_late(std::chrono::duration<double> limit);  // on the watchdog's thread; true: the step will end
  void replace_replica(std::unique_ptr<Executor> by);
  void lost_process(const std::string& why);  // any thread
  void check_processes();                     // throws DeviceFault once one is lost
  void forget_device_state();
  void end_all();
  std::optional<Error> device_failure() const;

  WorkerParts parts_;
  std::mutex replica_mutex_;      // of where parts_.replica points, for other threads than the engine's
  const LockstepPlace lockstep_;  // of parts_.replica
  sched::Scheduler scheduler_;
  decode::CostModel costs_;
  VerifyControl verify_;
  sched::TargetStep target_;
  PlanDeadline plan_deadline_;
  AcceptanceWatch acceptance_;
  const int32_t vocab_;
  Requests requests_;
  std::set<std::pair<RequestOutput::Clock::time_point, RequestId>> deadlines_;
  EngineStats totals_;          // counters; gauges are filled in by publish_stats()
  std::deque<Flight> flights_;  // oldest first
  std::vector<decode::RoundSegment> segments_;
  std::vector<decode::RoundResult> results_;
  std::vector<RequestId> decoded_;
  std::deque<Command> pending_;                             // taken, and not yet handled
  decode::PhaseTimes times_before_;                         // of the round: what does not count
  int64_t experts_before_ = 0;                              // touched in rounds that are gone
  std::optional<RequestOutput::Clock::time_point> mended_;  // when the last fault was
  double waited_s_ = 0;                                     // for the device

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Command> commands_;  // guarded by mutex_
  FairSpace queued_;              // admissions in commands_, and who waited when that was counted; guarded by mutex_
  bool stopping_ = false;         // guarded by mutex_
  std::string failure_;           // of the device; guarded by mutex_
  std::string lost_;              // why parts_.replica is to be made anew; guarded by mutex_
  EngineStats published_;         // guarded by mutex_
  VerifyNews published_news_;     // guarded by mutex_
  OpenRequests open_;
  Watchdog watchdog_;
  std::thread thread_;  // last: starts when everything above exists
};

}  // namespace volley::engine
