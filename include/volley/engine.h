// The engine: requests in, events out. One thread owns all model state; every public function may be called from any
// thread. See docs/architecture.md for what a round is and what always holds.
#pragma once

#include <volley/cache_events.h>
#include <volley/result.h>
#include <volley/sampling.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace volley {

enum class ComputeType { kAuto, kBFloat16, kFloat32 };  // kAuto: bfloat16 for bf16 checkpoints, else float32
// What keys and values are cached as. kAuto: as the arithmetic. kFp8: e4m3, divided by the scales of the checkpoint's
// layers (k_scale, v_scale), or by 1; attention multiplies them in bf16.
enum class KvCacheType { kAuto, kBFloat16, kFloat32, kFp8 };
enum class Speculation { kOn, kOff };
// How the target's weights lie in memory; embedding, router and gates stay as they are. The checkpoint is quantised
// while it loads.
//   kFp8: e4m3. On GPUs of compute capability 9.0 with a scale for each row, and what they multiply becomes e4m3, too;
//         the output head stays. On the CPU weights alone, with a scale for each 128 values.
//   kInt4: -8 to 7, with a scale for each 32 values; the output head as kFp8 on the CPU, and as it is on a GPU.
enum class Quantization { kNone, kFp8, kInt4 };
// The same of the drafter's weights, and on a GPU of its copy of the output head; the text never depends on it. kAuto:
// kFp8 where a GPU has a fast kernel for it, with bfloat16 arithmetic (compute capability 9.0, and sizes that it
// takes); on the CPU as the target's.
enum class DraftQuantization { kAuto, kNone, kFp8 };
// What a drafter's sliding-window layers see inside a block: what comes before (kCausal), or all of it. Another mask
// than the drafter was trained with costs acceptance; the text never depends on it. kAuto: what its config.json says,
// else causal.
enum class DraftWindowMask { kAuto, kCausal, kBidirectional };

// How many drafted tokens of a request a step verifies. Changes times, never tokens.
struct VerifyPolicy {
  enum class Kind {
    kAuto,   // each step drafts and verifies what commits the most tokens per second (docs/verify-budget.md)
    kFull,   // whole blocks, always
    kFixed,  // `tokens` of each request, always; 0: plain decoding
  };
  Kind kind = Kind::kAuto;
  int tokens = 0;
};

// To measure with random weights: a drafted token whose predecessors were accepted is accepted with probability p,
// whatever the target says. The text is meaningless.
struct SimulatedAcceptance {
  struct Phase {
    int64_t from_step = 0;  // of the request's decoding steps
    double p = 0;           // [0, 1]
  };
  std::vector<Phase> phases;   // ascending; the first from step 0
  double confidence_odds = 1;  // the drafter is said to be as confident as p says, with its odds multiplied by this
};

// Resolved once by Engine::create and immutable from then on. 0 means "choose a good value" where it says so.
struct EngineOptions {
  std::string model_dir;        // Hugging Face folder of the target
  std::string draft_dir;        // of the drafter; empty: none, and speculation must be kOff
  std::string device = "auto";  // auto (a GPU that can be used, else the CPU), cpu, cuda, cuda:N
  ComputeType dtype = ComputeType::kAuto;
  KvCacheType kv_cache_dtype = KvCacheType::kAuto;
  // CUDA, of target and drafter: auto, wgmma, portable or plain. Each decodes exactly.
  std::string attention_backend = "auto", draft_attention_backend = "auto";
  int threads = 0;  // of all ranks together; 0: the cores this process may use
  // Ranks that share every weight matrix and the KV heads among them: 1, 2, 4 or 8. Groups of threads; on CUDA a GPU
  // each, the device and those behind it: then nothing may have used CUDA before, as CUDA_MODULE_LOADING=EAGER is set.
  int tensor_parallel_size = 1;
  // In how many parts the target's layers are computed, a multiple of these ranks that is 1, 2, 4 or 8; 0: as many.
  // Engines with one number of parts have the same tokens and logprobs, whatever their ranks. More than ranks cost
  // time.
  int tensor_parallel_parts = 0;
  // Processes, as a rule one a machine, that have equal parts of these ranks. Each runs the same program with the same
  // models and options, but for node_rank, device, threads and what shares out memory. The engine is node 0's; the
  // others call Engine::follow(). master_addr is node 0's address, where it alone listens; whoever can connect to it is
  // trusted. On GPUs NCCL must be installed. Without replicas, and restart_on_device_error.
  int nnodes = 1, node_rank = 0;
  std::string master_addr;
  int master_port = 29501;
  // These ranks divide a layer's experts among them, whole ones in order, instead of the inner width of each expert.
  // Replicas of one rank do so, too. An error for a target without experts; for one rank alone a warning.
  bool enable_expert_parallel = false;
  // Replicas of the models in one engine, each with a scheduler, KV pages and slots, and on CUDA its ranks' GPUs, one
  // replica's behind the other's. On the CPU they share the target's weights, threads and free memory. Requests go
  // where their beginning is cached, else to where least is to do. Sizes below are a replica's, but for max_queue.
  int data_parallel_size = 1;
  // Prompts are token ids alone and answers too: the folder needs no tokenizer.json.
  bool skip_tokenizer = false;
  Speculation speculation = Speculation::kOn;
  int block_size = 0;  // tokens of a block, its first (known) token included; 0: the drafter's own
  Quantization quantization = Quantization::kNone;
  DraftQuantization draft_quantization = DraftQuantization::kAuto;
  int draft_window = 0;  // last context positions the drafter attends to; 0: all (or as its config says)
  DraftWindowMask draft_window_mask = DraftWindowMask::kAuto;
  int page_size = 0;  // KV positions a page: a multiple of 16; 0: 16 on the CPU, 64 on CUDA
  // Pages of full-attention layers; sliding windows get theirs beside them. 0: from kv_memory_bytes.
  int64_t kv_pages = 0;
  // 0: enough for max_num_seqs full contexts, and at least 2 GiB, or with a memory fraction half of what it leaves to
  // pages; in any case bounded by the share of free memory. What running requests leave free holds cached prefixes.
  int64_t kv_memory_bytes = 0;
  double memory_fraction = 0;  // that share, of the device's memory that is free at the start, weights included; 0: 0.5
                               // of what weights leave on the CPU, 0.9 on CUDA
  int max_num_seqs = 0;        // slots: requests decoding or prefilling at once; 0: 32 on the CPU, 128 on CUDA
  int max_num_batched_tokens = 0;  // rows of one target pass; 0: every slot's block and a prefill chunk
  int prefill_chunk = 0;           // most prompt tokens of one request a step; 0: 512 on the CPU, 2048 on CUDA
  // How long a step may take when requests decode while prompts are computed: prompts then get as many rows as fit, and
  // at least a few. 0: no bound; negative: 500 on the CPU, 50 on CUDA.
  int target_step_ms = -1;
  int max_model_len = 0;  // prompt + output; 0: the target's max_position_embeddings
  int max_queue = 4096;   // waiting requests, of all replicas, before submit answers kResourceExhausted
  bool prefix_cache = true;
  // Recurrent layers keep a state instead of K and V, so a prompt's beginning is reused only where a snapshot of it
  // lies: while prompts are computed at multiples of so many tokens, and at a request's end. A multiple of page_size
  // (else rounded up); 0: prefill_chunk.
  int state_snapshot_tokens = 0;
  // That all snapshots may take; the least recently used ones go. 0: two for each slot, in at most a quarter of what
  // weights, states and a step leave.
  int64_t state_snapshot_memory_bytes = 0;
  bool mmap = true;  // map weight files, which must then not be cut short while the engine lives; false: read them
  // What the mask of a grammar may take to compute in a step; a request whose mask takes longer ends with an error.
  // Where other work keeps the processors, a step waits up to twice as long, and the error is kUnavailable.
  int grammar_mask_timeout_ms = 250;
  // For compiling one grammar: kInvalidArgument after that.
  int grammar_compile_timeout_ms = 2000;
  // What all grammars may take together, those kept for later requests and those that requests use. Where the latter
  // take it all, submit() of another grammar answers kResourceExhausted.
  int64_t grammar_memory_bytes = int64_t{1} << 30;
  std::optional<uint64_t> dummy_weights;  // seed of random weights: only config.json is read
  bool graphs = true;                     // CUDA: replay steps that only decode as recorded graphs
  bool profile = false;  // CUDA: measure the phases of the round; steps then run one at a time and without graphs
  // Experts of a mixture are chosen at random, independent and equally likely, to measure with: random weights send
  // equal tokens to equal experts, which flatters them.
  bool simulate_routing = false;
  std::optional<SimulatedAcceptance> simulate_acceptance;  // of all requests that do not bring their own
  VerifyPolicy verify;
  // Folder of the file that keeps what a round costs, so that the next start need not measure it; empty: do not keep
  // it.
  std::string cost_cache_dir;
  // How long a step may take before the device is held to hang. 0: no bound; negative: 1800 on the CPU; on CUDA 3.5,
  // twice grammar_mask_timeout_ms and the time of its arithmetic at 5 TFLOP/s (0.5 with fp32), with several nodes and
  // where replicas share the experts 60. Time in which the process is stopped does not count.
  int step_timeout_s = -1;
  // The device's work runs in a process of its own, for each replica one. After a fault of the device, one that hangs,
  // and an end of that process, the models are loaded again, and every request goes on where it was, with the same
  // tokens. A second time within a minute ends the engine all the same. On GPUs nothing else in this process may use
  // CUDA: what it has there is given back before the other one starts.
  bool restart_on_device_error = false;
  // REQUIRED for that: a program and its arguments, which calls compute() with the number that comes behind them.
  std::vector<std::string> device_command;
  // The device failed or hangs, in a sentence: every request has had its last event, with kUnavailable, and submit()
  // answers so from now on; while the engine's destructor runs, requests of other replicas may still end. Called once,
  // on a thread of the engine's: must return fast, must not throw, may call nothing of the engine. Where the device
  // hangs, the destructor waits for it: end the process. May be empty; must outlive the engine.
  std::function<void(const std::string&)> on_device_failure;
  // Gets what shows only while the engine runs (a drafter that is of no use), a sentence, each at most once. Called on
  // the engine's thread, of several replicas never on two at once: must return fast, must not throw. May be empty; must
  // outlive the engine.
  std::function<void(const std::string&)> on_warning;
  // Gets the news of the prefix cache of a replica (0 where there is one), in order, from the first on. Called on the
  // replica's thread between two steps, of several perhaps at once: must return fast, must not block or throw, may call
  // nothing of the engine. Not after the engine's destructor has returned. May be empty, and events then cost nothing.
  std::function<void(int replica, std::span<const CacheEvent>)> on_cache_events;
};

// What is being loaded and how far: fraction in [0, 1]. Called from the thread that runs Engine::create.
using Progress = std::function<void(std::string_view phase, double fraction)>;

using RequestId = uint64_t;

// What the text must be (llguidance). End ids are allowed only where it is complete, a request's stop tokens anywhere.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object; text unused
    kJsonSchema,  // text: a JSON schema
    kRegex,       // text: a regular expression that the whole text matches
    kChoice,      // one of `choices`
    kLark,        // text: a grammar in llguidance's Lark dialect; its rule is `start`
    kEbnf,        // text: a grammar in GBNF, as vLLM, SGLang and llama.cpp users write it; its rule is `root`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  // Rules in Lark for what stands before the text, where something does: their rule `lead`; none may be called `start`
  // or `text`. Empty with kLark and kEbnf, which are on everything.
  std::string lead = {};
};

// Bounds how many tokens a model thinks: those after `begin`, or from the first on where the prompt has begun already,
// up to `end`. After `tokens` of them, all thoughts of the output together, the next token is `end`.
struct ThinkingBudget {
  int32_t tokens = 0;
  TokenId begin = 0, end = 0;
  bool begun = false;
};

// Ends a request when its last tokens are one pattern of min_size to max_size tokens, min_count times in a row.
struct RepetitionDetection {
  int32_t min_size = 1, max_size = 0, min_count = 2;
};

// The most of these that one request may bring; submit() refuses more.
inline constexpr int32_t kMaxLogitBias = 1024;
inline constexpr int32_t kMaxEndIds = 128;  // stop_token_ids and the model's own together

// Text in parts between control tokens. Without marks it is one part, which the prompt has begun: a completion.
struct TextParts {
  // Tokens that are no text, special or not: Event::marks says where they stood. No character and no stop string
  // reaches over one.
  std::vector<TokenId> marks;
  // Whether stop strings count behind this mark. `before`: the text between it and the one before, the first kilobyte.
  // Called for every mark in order, on the engine's thread: must return fast, must not throw. Each request has a copy
  // of its own. Empty: they count everywhere.
  std::function<bool(TokenId mark, std::string_view before)> stops_count;
  bool stops_count_at_start = true;  // before the first mark
};

struct GenerateRequest {
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int32_t max_tokens = -1;  // -1: as many as fit into max_model_len
  int32_t min_tokens = 0;   // end-of-sequence and stop ids are masked before, stop strings do not count
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // beside the model's own end-of-sequence ids
  std::vector<std::string> stop;        // the text ends before the first of these
  std::optional<TextParts> parts;       // nothing: the text is one
  std::string cache_namespace;          // prefixes are shared within one namespace only
  std::optional<GrammarSpec> grammar;   // submit() answers kInvalidArgument when it cannot be compiled
  bool skip_special_tokens = true;      // false: the text holds those that are not its end
  // What may be chosen, beside what the grammar allows. Where they leave no token, the request fails
  // (kInvalidArgument), or ends if its grammar lets it.
  std::vector<TokenId> allowed_tokens;          // these alone, ids that end the request included; empty: all
  std::vector<std::vector<TokenId>> bad_words;  // the output never holds one of these
  std::optional<ThinkingBudget> thinking;
  std::optional<RepetitionDetection> repetition;  // min_tokens are produced first
  // -1: none; k >= 0: each prompt token's logprob and the k highest of its position (max 20). Such a request computes
  // its whole prompt: it takes nothing from the prefix cache.
  int32_t prompt_logprobs = -1;
  bool shares_prompt = false;  // others with the same prompt come with it: what can be shared of it is kept for them
  bool speculation = true;     // false: this request is decoded plainly; its tokens are the same
  // Who comes first when requests wait for each other; never a token. Tenants get equal parts of prompt rows and slots,
  // and within a tenant groups do: requests of one tenant with one `group` count as one. 0: a group of its own.
  std::string tenant;
  uint64_t group = 0;
  int32_t priority = 0;  // within the tenant: lower is earlier, however long the others have waited
  std::optional<SimulatedAcceptance> simulate_acceptance;  // REQUIRES: EngineOptions::simulate_acceptance is set
  // Seconds from submit(), after which the request ends at the next step with what it has (kTimeout), be it that it
  // still waits. 0: no limit.
  double timeout_s = 0;
  const std::atomic<bool>* cancelled = nullptr;  // as in EncodeLimits, of submit(), which may compile a grammar
  bool compiles_at_once = false;                 // or submit() answers kResourceExhausted: others compile theirs
};

enum class FinishReason { kStop, kLength, kTimeout, kCancelled, kError };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "timeout", "cancelled", "error"

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, taken from the prefix cache
  int32_t completion_tokens = 0;
  int32_t drafted_tokens = 0;                   // proposed and verified
  int32_t accepted_tokens = 0;                  // of those, kept
  double queue_s = 0, ttft_s = 0, total_s = 0;  // from submit: to first scheduled, to first token, to the end
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;     // the id that ended it; part of `tokens`, not of `text`
  std::optional<std::string> stop_text;  // the stop string that ended it
  bool repeated = false;                 // RepetitionDetection ended it, with kStop
  std::optional<Error> error;            // with kError
  Usage usage;
  // Tokens committed by each verify step, bonus included; the prefill's token is not counted (sum = tokens - 1).
  std::vector<int32_t> tokens_per_step;
};

// News of one request. `finish` is set on exactly one event of each accepted request, its last one.
struct Event {
  struct Mark {
    TokenId token = 0;
    size_t at = 0;  // in `text`: it stands before this byte
  };

  RequestId id = 0;
  std::vector<TokenId> tokens;             // new token ids, in order
  std::string text;                        // new text: whole UTF-8 sequences, never part of a stop string
  std::vector<Mark> marks;                 // TextParts, in order; not the token that ends the request
  std::vector<PositionLogprobs> logprobs;  // one a token, if asked for
  // On the event with the first token, if asked for: one a prompt token but the first, which nothing precedes.
  std::vector<PositionLogprobs> prompt_logprobs;
  int32_t drafted = 0;   // drafted tokens that this step verified
  int32_t accepted = 0;  // of `tokens`, how many were drafted (they come first; what follows is the bonus token)
  std::optional<Finish> finish;
};

// Called on the engine's thread, of a device that hangs the last time on another one, never on two at once: must return
// fast, must not throw, and may call nothing of the engine but cancel(). It is not called after the engine's destructor
// has returned.
using EventSink = std::function<void(const Event&)>;

struct EngineInfo {
  std::string architecture;
  std::string device;
  std::string dtype;
  std::string instruction_set;          // what the kernels run on, e.g. "AVX3 + BF16"
  std::string attention_backend;        // that runs: wgmma, portable or plain; empty on the CPU, which has one
  std::string draft_attention_backend;  // empty without a drafter, too
  int vocab_size = 0;
  int max_model_len = 0;
  int block_size = 0;  // 1: no speculation
  int page_size = 0;
  int data_parallel_size = 1;  // of as many replicas pages, weights, sequences and threads are the sums
  int64_t kv_pages = 0;
  int64_t kv_bytes = 0;            // of all pages, those of sliding windows included
  int64_t kv_bytes_per_token = 0;  // target and drafter; of layers without a sliding window
  int64_t weight_bytes = 0;        // packed, target and drafter; what replicas share counts once
  std::string quantization;        // of the target's weights: "none", "fp8" or "int4", or what its files call it
  std::string draft_quantization;  // of the drafter's, likewise; empty without one
  int max_num_seqs = 0;
  int tensor_parallel_size = 1;
  bool expert_parallel = false;  // whether ranks or replicas divide the experts
  int threads = 0;               // bytes and threads are of all ranks together
  std::vector<TokenId> eos_token_ids;
  SamplingParams default_sampling;    // generation_config.json over the library's defaults
  std::vector<std::string> warnings;  // e.g. a block size above what the drafter was trained for
};

// Counters since the start, and gauges of now. Consistent with each other: one snapshot between two steps.
struct EngineStats {
  int64_t requests_waiting = 0, requests_running = 0;
  int64_t requests_finished = 0, requests_cancelled = 0, requests_failed = 0, preemptions = 0;
  int64_t device_restarts = 0;  // EngineOptions::restart_on_device_error
  int64_t steps = 0;            // target passes
  int64_t verify_steps = 0;     // request-steps that committed decoded tokens: the denominator of acceptance length
  int64_t experts_touched = 0;  // distinct experts that target passes read, summed over passes and layers
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  std::vector<int64_t> accepted_at;                // [i]: blocks whose drafted position i + 1 was accepted
  std::vector<int64_t> drafted_at;                 // [i]: blocks that verified a drafted position i + 1
  int64_t grammars_cached = 0, grammar_bytes = 0;  // compiled grammars that are kept; of those and those in use
  int64_t pages_total = 0, pages_used = 0,
          pages_cached = 0;  // used = held by requests or cache; cached = by the cache alone
  // Pages by cache group: first that of full-attention layers, whose pages the three above are (layers without any
  // leave it empty pages, which count positions), then one for each size of sliding window.
  struct PageGroup {
    int window = 0;  // 0: none
    int64_t total = 0, used = 0, cached = 0;
    int64_t bytes = 0;  // of all of them
  };
  std::vector<PageGroup> page_groups;
  int64_t state_bytes = 0;  // memory of what recurrent layers keep of requests, all slots' together
  // Snapshots of such states: how many there is room for, how many are held (by the prefix cache or while they are
  // made), the bytes of those, and requests that began with one, of a prompt or of a request's end.
  struct Snapshots {
    int64_t total = 0, held = 0, bytes = 0;
    int64_t prompt_hits = 0, end_hits = 0;
  } snapshots;
  // Time by phase of the round (on CUDA only with EngineOptions::profile), and of the host beside it.
  double draft_s = 0, target_s = 0, choose_s = 0, commit_s = 0, host_s = 0;
  // The device's time in steps, and between steps of which the next was there already: what it waited for nothing.
  double device_s = 0, idle_s = 0;

  // The verify budget, of steps in which somebody decodes.
  struct Verify {
    int64_t steps = 0, probes = 0, plain = 0;  // in all; that drafted to learn; that drafted nothing
    std::vector<int64_t> draft_lengths;        // [n]: steps in which n was the most that a request could use
    int64_t rows = 0;                          // of the target's passes for decoding requests
    double expected_tokens = 0;                // simulated acceptance: mean of what the verified blocks commit
    double predicted_tokens = 0, predicted_s = 0,
           measured_s = 0;  // with kAuto: what was predicted, and the time it took
    // By position, of blocks in which their request did not end: how many verified it, in how many it and all before it
    // were predicted (sum) and seen to survive.
    std::vector<int64_t> verified_at, survived_at;
    std::vector<double> predicted_at;
    std::string last;  // the last decision in words
  } verify;

  // With EngineOptions::data_parallel_size above 1 the same of each replica, but for grammars; everything above is then
  // their sums, each replica's consistent in itself. Else empty.
  std::vector<EngineStats> replicas;
};

// What bounds the work of tokenising a text, and what it is taken for.
struct EncodeLimits {
  // Where a text is certain to have more tokens than this, any of them are enough, as long as there are more.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  size_t last_tokens = 0;  // not 0: only so many, the last ones
  bool plain = false;      // no token but those of the text itself: what is spelt like a special token is letters
  const std::atomic<bool>* cancelled = nullptr;  // once true the call soon answers kCancelled; borrowed for the call
};

struct ChatMessages {
  std::string messages_json;         // JSON array of {role, content, …}
  std::string tools_json;            // JSON array or empty
  std::string template_kwargs_json;  // JSON object or empty: extra variables of the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  const std::atomic<bool>* cancelled = nullptr;  // as in EncodeLimits
};

class Engine {
 public:
  // Loads the models (minutes for large ones) and starts the engine's thread. Errors name what does not fit.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, const Progress& progress = {});
  // For node_rank above 0: loads its part of the models and computes what node 0 asks for, on this thread, until node
  // 0's engine ends. Errors as create(); kUnavailable: node 0 is gone, or this device has failed; of one that hangs
  // on_device_failure hears. `started`, unless empty: called when all nodes have met and the models are loaded.
  static Status follow(const EngineOptions& options, const Progress& progress = {},
                       const std::function<void()>& started = {});
  // For a process that was started by restart_on_device_error: has the device for that engine, with its options, on
  // this thread, until it ends. The descriptor is compute()'s from then on. Errors as create(); the engine hears of
  // them. Where the engine's process is gone this one ends at once, with status 1.
  static Status compute(int descriptor);
  virtual ~Engine() = default;  // cancels what runs: every request still gets its last event

  // Checks and queues a request. If it returns an id, `sink` gets events until the one with `finish`, the first of them
  // possibly before submit() returns (Event::id says whose they are); if it returns an error, none.
  virtual Result<RequestId> submit(GenerateRequest request, EventSink sink) = 0;
  // Whether submit() would have to compile this grammar, which takes a while, and may have to wait for others.
  virtual bool compiles(const GrammarSpec& grammar) const = 0;
  // Ends a request at the next step; nothing happens if it has ended already. Needs no memory: whoever gives up a
  // request for the lack of it can.
  virtual void cancel(RequestId id) noexcept = 0;
  // From the next step on. Blocks are drafted in some lengths only, chosen at the start: another number of tokens is
  // verified of the next longer block. kInvalidArgument: more tokens than a block drafts; kFailedPrecondition: there is
  // no drafter, or kAuto where the engine did not start with it (what a step costs is measured at the start).
  virtual Status set_verify(const VerifyPolicy& policy) = 0;
  // EngineOptions::target_step_ms from the next step on; 0: no bound. REQUIRES: not negative.
  virtual void set_target_step_ms(int milliseconds) = 0;
  // Forgets cached prefixes that no running request uses.
  virtual void drop_prefix_cache() = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats stats() const = 0;

  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const {
    return encode_within(text, add_special_tokens, {});
  }
  virtual Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                                     const EncodeLimits& limits) const = 0;
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;
  virtual Result<std::string> render_chat(const ChatMessages& chat) const = 0;
};

}  // namespace volley
