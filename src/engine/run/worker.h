// The one thread that owns models, slots, pages and requests. Each pass of its loop takes the queued commands, plans
// and enqueues a step, and hands out the results of the oldest step under way. A device that runs ahead then already
// works on the next step, so it never waits for the host.
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
#include "engine/run/pictures.h"
#include "engine/run/plan_deadline.h"
#include "engine/run/prompt_rows.h"
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
  int32_t prompt_vectors = 1;  // EngineInfo's
  Pictures::Config pictures;
  int32_t pictures_side = 0;  // PictureRules::token_side(); 0: there are none
  sched::SchedulerConfig scheduler;
  double target_step_s = 0;  // sched::TargetStep
  int32_t max_queue = 0;     // waiting requests
  VerifyPolicy verify;
  std::optional<decode::CostModel> costs;  // required for VerifyPolicy::Kind::kAuto
  std::vector<DrafterTraits> drafters;
  std::function<void(const std::string&)> on_warning;  // may be empty
  StepTimeout step_timeout;
  // Makes `replica` again after a fault, with as many pages; empty: a fault ends the engine. Calls `attend` several
  // times a second where it can, on this thread, and gives up (kCancelled) when it returns false.
  using Attend = std::function<bool()>;
  std::function<Result<std::unique_ptr<Executor>>(const Attend& attend)> remake;
  double least_between_faults_s = 60;  // after a mended fault, another one within this time ends the engine
  std::function<void(const std::string&)> on_device_failure;  // may be empty
  // Called on the engine's thread unless empty: between steps, with the cache events of all requests that have ended,
  // perhaps none (REQUIRES: the scheduler makes events); before the replica is made again; and once it works.
  std::function<void(std::span<const CacheEvent>)> on_published;
  std::function<void(bool begins)> on_restart;
};

// A request that passed every check.
struct Admission {
  RequestId id = 0;
  GenerateRequest request;                 // max_tokens resolved, seed drawn
  std::unique_ptr<text::Matcher> matcher;  // for request.grammar; may be null
  EventSink sink;
  RequestOutput::Clock::time_point submitted;
  std::vector<Sha256> pictures;  // their hashes; the request has their spans, without vectors
};

class Worker {
 public:
  explicit Worker(WorkerParts parts);
  ~Worker();    // cancels every request, then joins
  void stop();  // starts the end
  void join();  // returns when the thread has ended

  // Any thread. kResourceExhausted when the queue is full, kUnavailable while ending and after the device has failed.
  Status submit(Admission admission);
  void cancel(RequestId id);
  void drop_prefix_cache();
  void set_verify(const VerifyPolicy& policy);  // REQUIRES: WorkerParts::costs, for kAuto
  void set_target_step(double seconds);         // sched::TargetStep
  EngineStats stats() const;
  FairSpace queued() const;  // requests that wait

  // Ends every open request with this failure of the device, and refuses new ones. Later calls do nothing.
  void give_up(const std::string& failure);

 private:
  struct Cancel {
    RequestId id;
  };
  struct DropPrefixCache {};
  using Command = std::variant<Admission, Cancel, DropPrefixCache, VerifyPolicy, sched::TargetStep>;

  struct Request {
    decode::SlotStart start;  // its spans are filled when a slot is taken
    PromptRows prompt_rows;
    RequestOutput output;
    std::shared_ptr<GrammarMasks> grammar;  // also has the request's other rules on tokens; may be null
    int32_t prompt_logprobs;                // -1: none; else the number of highest ones
    std::optional<SimulatedAcceptance> simulate;
    std::optional<RequestOutput::Clock::time_point> deadline;
    int64_t decoding_steps = 0;  // steps planned so far
    int32_t counted_prompt = 0;  // prompt tokens already in totals_
    std::optional<int32_t> slot = std::nullopt;
  };
  using Requests = std::unordered_map<RequestId, Request>;

  // A request some of whose pictures have no vectors yet: what the scheduler gets when they have.
  struct Unseen {
    std::vector<Sha256> hashes;  // of its spans
    std::vector<bool> seen;
    std::string space;
    std::vector<TokenId> prompt;
    int32_t max_tokens = 0;
    sched::RequestTraits traits;
  };

  // A planned step on its way.
  struct Flight {
    sched::StepPlan plan;
    VerifyStep verify;
    bool enqueued = true;  // false: no request was left in it
    double timeout = 0;    // time beyond the least
  };

  // The engine's thread alone runs these:
  void loop();
  bool run_until_fault();  // true: the device was mended, and requests go on
  void run();              // until the engine ends, or throws DeviceFault
  bool take_commands();    // into pending_; waits while idle, and for PlanDeadline; false when the engine ends
  void handle(Command command);
  void handle(Admission admission);
  void schedule(RequestId id, Unseen request);
  void see(RequestId id, const Sha256& hash, const PictureVectors& vectors);
  void see();  // a piece of the pictures' work, between steps
  void move_commands();
  void handle_pending();
  bool attend();                               // to commands, between steps; false: the engine ends
  void end_late();                             // requests past their deadline
  void take_part();                            // in a pass of other replicas
  void follow_to_the_end();                    // until no other replica begins passes
  void erase(std::span<const RequestId> ids);  // REQUIRES: they are open
  // returns its slot, if it had one, for the caller to clear
  std::optional<int32_t> forget(Requests::iterator request);
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
  decode::RoundSegment segment_of(const sched::PlannedSegment& planned, const VerifyStep& verify);
  void observe(const Flight& flight, const decode::StepTimes& times);
  void apply_plan(sched::StepPlan& plan);
  Status start_slot(Request& request, const sched::PlannedSegment& started);
  void hand_out(const Flight& flight, std::vector<decode::RoundResult>& results);
  void add_prompt_logprobs(const sched::PlannedSegment& segment, Request& request, decode::RoundResult& result);
  void count_prompt(RequestId id, Request& request, int32_t computed);
  void count(bool decodes, const decode::RoundResult& result);
  void watch(const Request& request, const decode::RoundResult& result, int32_t drafter);
  // worker_faults.cc
  bool recover(const std::string& fault);  // true: run() can go on
  Status restart();
  Result<std::unique_ptr<Executor>> remake();
  bool is_late(std::chrono::duration<double> limit);  // on the watchdog's thread; true: the step will end
  void replace_replica(std::unique_ptr<Executor> by);
  void lost_process(const std::string& why);  // any thread
  void check_processes();                     // throws DeviceFault if a process is lost
  void forget_device_state();
  void end_all();
  std::optional<Error> device_failure() const;

  WorkerParts parts_;
  std::mutex replica_mutex_;      // guards parts_.replica for other threads than the engine's
  const LockstepPlace lockstep_;  // parts_.replica's
  sched::Scheduler scheduler_;
  decode::CostModel costs_;
  VerifyControl verify_;
  sched::TargetStep target_;
  PlanDeadline plan_deadline_;
  std::vector<AcceptanceWatch> acceptance_;  // by drafter
  const int32_t vocab_;
  Requests requests_;
  Pictures pictures_;
  std::unordered_map<RequestId, Unseen> unseen_;
  double seeing_s_ = 0;                             // of the tower's work since the last step was planned
  int64_t planned_steps_ = 0, vectors_behind_ = 0;  // steps so far; the step behind which a picture's vectors are there
  std::set<std::pair<RequestOutput::Clock::time_point, RequestId>> deadlines_;
  EngineStats totals_;          // counters; publish_stats() adds the gauges
  std::deque<Flight> flights_;  // oldest first
  std::vector<decode::RoundSegment> segments_;
  std::vector<decode::RoundResult> results_;
  std::vector<RequestId> decoded_;
  std::deque<Command> pending_;                             // taken, and not yet handled
  decode::PhaseTimes times_before_;                         // the round's times that do not count
  int64_t experts_before_ = 0;                              // touched in earlier rounds
  std::optional<RequestOutput::Clock::time_point> mended_;  // time of the last fault
  double waited_s_ = 0;                                     // waiting for the device

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Command> commands_;  // guarded by mutex_
  // admissions in commands_, and the requests that waited at the last count; guarded by mutex_
  FairSpace queued_;
  bool stopping_ = false;      // guarded by mutex_
  std::string failure_;        // the device's; guarded by mutex_
  std::string lost_;           // why parts_.replica must be made again; guarded by mutex_
  EngineStats published_;      // guarded by mutex_
  VerifyNews published_news_;  // guarded by mutex_
  OpenRequests open_;
  Watchdog watchdog_;
  std::thread thread_;  // last: starts when everything above exists
};

}  // namespace volley::engine
