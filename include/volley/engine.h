// The engine: requests in, events out. One thread owns all model state; every public function may be called from any
// thread. docs/architecture.md defines a round and the invariants.
#pragma once

#include <volley/cache_events.h>
#include <volley/engine_options.h>
#include <volley/result.h>
#include <volley/sampling.h>

#include <array>
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

// Progress of loading: the part being loaded, and a fraction in [0, 1]. Called from the thread that runs
// Engine::create.
using Progress = std::function<void(std::string_view phase, double fraction)>;

using RequestId = uint64_t;

// The grammar of the text (llguidance). End ids are allowed only where the text is complete, a request's stop tokens
// anywhere.
struct GrammarSpec {
  enum class Kind {
    kJsonObject,  // any JSON object; text unused
    kJsonSchema,  // text: a JSON schema; objects with named properties have no others, unless the schema says so
    kRegex,       // text: a regular expression that the whole text matches
    kChoice,      // one of `choices`
    kLark,        // text: a grammar in llguidance's Lark dialect; its rule is `start`
    kEbnf,        // text: a grammar in GBNF, as vLLM, SGLang and llama.cpp users write it; its rule is `root`
  };
  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  // Rules in Lark for output before the text, if there may be some: their rule is `lead`; none may be called `start` or
  // `text`. Empty with kLark and kEbnf, which apply to the whole output.
  std::string lead = {};
};

// Bounds the tokens of a model's thoughts: those after `begin`, or from the first on if the prompt has begun a thought,
// up to `end`. After `tokens` of them, counted over the whole output, the next token is `end`.
struct ThinkingBudget {
  int32_t tokens = 0;
  TokenId begin = 0, end = 0;
  bool begun = false;
};

// Ends a request when its last tokens are one pattern of min_size to max_size tokens, min_count times in a row.
struct RepetitionDetection {
  int32_t min_size = 1, max_size = 0, min_count = 2;
};

// The most that one request may have of each; submit() refuses more.
inline constexpr int32_t kMaxLogitBias = 1024;
inline constexpr int32_t kMaxEndIds = 128;  // stop_token_ids and the model's own together

// Text in parts between control tokens. Without marks it is one part, which the prompt has begun: a completion.
struct TextParts {
  // Tokens that are no text, special or not: Event::marks says where they occurred. No character and no stop string
  // extends over one.
  std::vector<TokenId> marks;
  // Whether stop strings count after this mark. `before`: up to a kilobyte of the text between this mark and the one
  // before. Called for every mark in order, on the engine's thread: must return fast, must not throw. Each request has
  // a copy of its own. Empty: they count everywhere.
  std::function<bool(TokenId mark, std::string_view before)> stops_count;
  bool stops_count_at_start = true;  // before the first mark
};

// To measure with random weights: a drafted token whose predecessors were accepted is accepted with probability p,
// whatever the target says. The text is meaningless.
struct SimulatedAcceptance {
  struct Phase {
    int64_t from_step = 0;              // counted in the request's decoding steps
    double p = 0;                       // [0, 1]
    std::optional<double> second = {};  // of a second drafter's tokens; nothing: p, too
  };
  std::vector<Phase> phases;   // ascending; the first from step 0
  double confidence_odds = 1;  // the drafter's simulated confidence is p, with its odds multiplied by this
};

// Consecutive tokens of a prompt, e.g. of a picture, that bring more than their ids.
struct PromptSpan {
  int32_t begin = 0, end = 0;  // the tokens [begin, end) of the prompt
  // [EngineInfo::prompt_vectors, end - begin, EngineInfo::hidden_size]: vectors in place of the tokens' rows of the
  // embedding; and where the model has DeepStack, those that it adds after each of its first layers. Null: the rows of
  // the tokens' ids.
  std::shared_ptr<const std::vector<float>> vectors;
  // Each token's rotary positions in time, height and width; REQUIRES: EngineInfo::prompt_positions. No position is
  // above its token's index. Tokens after the span go on behind its greatest position. Empty: as for text.
  std::vector<std::array<int32_t, 3>> positions;
};

// How the model takes pictures (its preprocessor_config.json and config.json).
struct PictureRules {
  int32_t patch_size = 16, merge_size = 2;   // a token stands for a square of patch_size * merge_size pixels a side
  int64_t min_pixels = 0, max_pixels = 0;    // of a picture that was brought to whole tokens
  std::array<float, 3> mean = {}, std = {};  // of red, green and blue, which lie in [0, 1]
  TokenId begin = 0, token = 0, end = 0;     // e.g. <|vision_start|>, <|image_pad|>, <|vision_end|>

  int32_t token_side() const { return patch_size * merge_size; }  // in pixels
};

// A picture within a prompt. The engine makes its span and keys of it: what the model sees there, where it stands, and
// what the prefix cache knows it by.
struct PromptPicture {
  int32_t begin = 0;              // the first of its (width / token_side) * (height / token_side) tokens in the prompt
  int32_t width = 0, height = 0;  // in pixels; multiples of PictureRules::token_side()
  // [height, width, 3]. The bytes never change while the vector lives: a later request with it is the same picture.
  std::shared_ptr<const std::vector<uint8_t>> rgb;
};

struct GenerateRequest {
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int32_t max_tokens = -1;  // -1: as many as fit into max_model_len
  int32_t min_tokens = 0;   // end-of-sequence and stop ids are masked before, stop strings do not count
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // beside the model's own end-of-sequence ids
  std::vector<std::string> stop;        // the text ends before the first of these
  std::optional<TextParts> parts;       // no value: the output is one text
  std::string cache_namespace;          // prefixes are shared within one namespace only
  // What the prefix cache knows the prompt's tokens by, one a token; empty: their ids. Two requests share a beginning
  // with equal keys, even if its ids differ: so these are for who knows that equal keys mean equal tokens.
  std::vector<TokenId> prompt_keys;
  std::vector<PromptSpan> prompt_spans;  // in order and apart; REQUIRES: prompt_keys, because ids say too little
  std::vector<PromptPicture>
      pictures;  // likewise, but without prompt_keys and prompt_spans; REQUIRES: EngineInfo::pictures
  std::optional<GrammarSpec> grammar;  // submit() answers kInvalidArgument when it cannot be compiled
  bool skip_special_tokens = true;     // false: `text` contains special tokens other than its end
  // The tokens that may be chosen, within the grammar. If no token is left, the request fails (kInvalidArgument), or
  // ends if its grammar permits.
  std::vector<TokenId> allowed_tokens;          // only these, including ids that end the request; empty: all
  std::vector<std::vector<TokenId>> bad_words;  // the output never holds one of these
  std::optional<ThinkingBudget> thinking;
  std::optional<RepetitionDetection> repetition;  // min_tokens are produced first
  // -1: none; k >= 0: each prompt token's logprob and the k highest of its position (max 20). Such a request computes
  // its whole prompt: it takes nothing from the prefix cache.
  int32_t prompt_logprobs = -1;
  bool shares_prompt = false;  // other requests with the same prompt follow: the shared part is kept for them
  bool speculation = true;     // false: this request is decoded plainly; its tokens are the same
  // The order in which waiting requests are served; never changes a token. Tenants get equal parts of prompt rows and
  // slots, and within a tenant groups do: requests of one tenant with one `group` count as one. 0: a group of its own.
  std::string tenant;
  uint64_t group = 0;
  int32_t priority = 0;  // within the tenant: lower is earlier, however long the others have waited
  std::optional<SimulatedAcceptance> simulate_acceptance;  // then without a grammar and rules on its tokens
  // Seconds from submit(), after which the request ends at the next step with its output so far (kTimeout), even if it
  // still waits. 0: no limit.
  double timeout_s = 0;
  const std::atomic<bool>* cancelled = nullptr;  // as in EncodeLimits, of submit(), which may compile a grammar
  bool compiles_at_once = false;                 // else submit() answers kResourceExhausted while others compile
};

enum class FinishReason { kStop, kLength, kTimeout, kCancelled, kError };
inline const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "timeout", "cancelled", "error"};
  return kNames[static_cast<int>(reason)];
}

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens taken from the prefix cache
  int32_t completion_tokens = 0;
  int32_t drafted_tokens = 0;                   // drafted tokens that were verified
  int32_t accepted_tokens = 0;                  // the accepted ones among them
  double queue_s = 0, ttft_s = 0, total_s = 0;  // from submit: to first scheduled, to first token, to the end
};

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<TokenId> stop_token;     // the id that ended the request; part of `tokens`, not of `text`
  std::optional<std::string> stop_text;  // the stop string that ended the request
  bool repeated = false;                 // RepetitionDetection ended it, with kStop
  std::optional<Error> error;            // with kError
  Usage usage;
  // Tokens committed by each verify step, bonus included; the prefill's token is not counted (sum = tokens - 1).
  std::vector<int32_t> tokens_per_step;
};

// An update of one request. `finish` is set on exactly one event of each accepted request, its last one.
struct Event {
  struct Mark {
    TokenId token = 0;
    size_t at = 0;  // byte of `text` before which the mark stands
  };

  RequestId id = 0;
  std::vector<TokenId> tokens;             // new token ids, in order
  std::string text;                        // new text: whole UTF-8 sequences, never part of a stop string
  std::vector<Mark> marks;                 // TextParts, in order; not the token that ends the request
  std::vector<PositionLogprobs> logprobs;  // one for each token, if requested
  // On the event with the first token, if requested: one for each prompt token except the first, which no token
  // precedes.
  std::vector<PositionLogprobs> prompt_logprobs;
  int32_t drafted = 0;   // drafted tokens that this step verified
  int32_t accepted = 0;  // how many of `tokens` were drafted (they come first; then comes the bonus token)
  std::optional<Finish> finish;
};

// Called on the engine's thread, or for the last events of a hanging device on another thread, never on two at once. It
// must return fast, must not throw, and may call no function of the engine except cancel(). It is not called after the
// engine's destructor has returned.
using EventSink = std::function<void(const Event&)>;

struct EngineInfo {
  std::string architecture;
  std::string device;
  std::string dtype;
  std::string instruction_set;  // the kernels' instruction set, e.g. "AVX3 + BF16"
  // The backend in use: wgmma, portable or plain; auto where layers have several; empty on the CPU, which has one.
  std::string attention_backend;
  std::string draft_attention_backend;  // also empty without a drafter
  int vocab_size = 0;
  int max_model_len = 0;
  int hidden_size = 0;                   // of PromptSpan::vectors
  int prompt_vectors = 1;                // vectors for each token of a PromptSpan
  bool prompt_positions = false;         // whether PromptSpan may have positions: the model has M-RoPE
  std::optional<PictureRules> pictures;  // nothing: the model takes text alone
  int drafters = 0;
  int block_size = 0;  // the longest drafter's; 1: no speculation
  int page_size = 0;
  int data_parallel_size = 1;  // with several replicas, pages, weights, sequences and threads are sums over them
  int64_t kv_pages = 0;
  int64_t kv_bytes = 0;            // all pages, including those of sliding windows
  int64_t kv_bytes_per_token = 0;  // target and drafter; of layers without a sliding window
  int64_t weight_bytes = 0;        // packed, target and drafter; weights that replicas share count once
  std::string quantization;        // the target's weights: "none", "fp8" or "int4", or its files' own name
  std::string draft_quantization;  // likewise for the drafter; empty without one
  int max_num_seqs = 0;
  int tensor_parallel_size = 1;
  bool expert_parallel = false;  // whether ranks or replicas divide the experts
  int threads = 0;               // bytes and threads are of all ranks together
  std::vector<TokenId> eos_token_ids;
  SamplingParams default_sampling;    // generation_config.json over the library's defaults
  std::vector<std::string> warnings;  // e.g. a block size above what the drafter was trained for
};

// Counters since the start, and current gauges. They are consistent: one snapshot between two steps.
struct EngineStats {
  int64_t requests_waiting = 0, requests_running = 0;
  int64_t requests_finished = 0, requests_cancelled = 0, requests_failed = 0, preemptions = 0;
  int64_t device_restarts = 0;     // EngineOptions::restart_on_device_error
  int64_t devices_restarting = 0;  // replicas that are reloading their models: their requests wait
  int64_t steps = 0;               // target passes
  int64_t verify_steps = 0;        // request-steps that committed decoded tokens: the denominator of acceptance length
  int64_t experts_touched = 0;     // distinct experts that target passes read, summed over passes and layers
  int64_t prompt_tokens = 0;       // counted when computed; cached ones when the request starts
  int64_t cached_tokens = 0, generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  std::vector<int64_t> accepted_at;  // [i]: blocks whose drafted position i + 1 was accepted
  std::vector<int64_t> drafted_at;   // [i]: blocks that verified a drafted position i + 1
  // Pictures whose vectors the tower made, and those that it had made before; the device's time for them.
  int64_t pictures = 0, picture_hits = 0;
  double vision_s = 0;
  int64_t grammars_cached = 0, grammar_bytes = 0;  // kept grammars; bytes of kept and used ones
  int64_t pages_total = 0, pages_used = 0,
          pages_cached = 0;  // used = held by requests or cache; cached = only by the cache
  // Pages by cache group: first the group of full-attention layers, to which the three counts above refer (in a model
  // without such layers its pages are empty and only count positions), then one for each size of sliding window.
  struct PageGroup {
    int window = 0;  // 0: none
    int64_t total = 0, used = 0, cached = 0;
    int64_t bytes = 0;  // over all requests
  };
  std::vector<PageGroup> page_groups;
  int64_t state_bytes = 0;  // memory of recurrent layers' states, for all slots
  // Snapshots of such states: the room for them, those held (by the prefix cache or while being made), their bytes, and
  // requests that began with one, made in a prompt or at a request's end.
  struct Snapshots {
    int64_t total = 0, held = 0, bytes = 0;
    int64_t prompt_hits = 0, end_hits = 0;
  } snapshots;
  // Time by phase of the round (on CUDA only with EngineOptions::profile), and of the host beside it.
  double draft_s = 0, target_s = 0, choose_s = 0, commit_s = 0, host_s = 0;
  // The device's time in steps, and its idle time between steps of which the next was ready.
  double device_s = 0, idle_s = 0;

  // The verify budget, over steps in which a request decodes.
  struct Verify {
    int64_t steps = 0, probes = 0, plain = 0;  // in all; that drafted to learn; that drafted nothing
    std::vector<int64_t> draft_lengths;  // [n]: steps in which n drafted tokens were the most that a request could use
    int64_t rows = 0;                    // rows of the target's passes for decoding requests
    double expected_tokens = 0;          // simulated acceptance: mean of what the verified blocks commit
    double predicted_tokens = 0, predicted_s = 0,
           measured_s = 0;  // with kAuto: the predicted and the actual time
    // By position, over blocks in which the request did not end: how many verified the position, and in how many it and
    // all before it survived, as predicted (sum) and as observed.
    std::vector<int64_t> verified_at, survived_at;
    std::vector<double> predicted_at;
    // A drafter's steps, and how many of its tokens they verified and accepted.
    struct Drafter {
      int64_t steps = 0, drafted_tokens = 0, accepted_tokens = 0;
    };
    std::vector<Drafter> drafters;
    std::string last;  // the last decision in words
  } verify;

  // With EngineOptions::data_parallel_size above 1 the same for each replica, without grammars; all counters above are
  // then sums, and each replica's are consistent. Otherwise empty.
  std::vector<EngineStats> replicas;
};

// Bounds on the tokenising of a text, and how the text is read.
struct EncodeLimits {
  // If a text certainly has more tokens than this, the result may be any tokens of it, as long as they are more.
  size_t max_tokens = std::numeric_limits<size_t>::max();
  size_t last_tokens = 0;  // not 0: only the last so many tokens
  bool plain = false;      // only tokens of the text itself: letters that spell a special token stay letters
  const std::atomic<bool>* cancelled = nullptr;  // once true the call soon answers kCancelled; borrowed for the call
};

struct ChatMessages {
  std::string messages_json = {};         // JSON array of {role, content, …}
  std::string tools_json = {};            // JSON array or empty
  std::string template_kwargs_json = {};  // JSON object or empty: variables of the template, special tokens among them
  bool add_generation_prompt = true;
  bool continue_final_message = false;           // the text ends where the last message's content does
  const std::atomic<bool>* cancelled = nullptr;  // as in EncodeLimits
};

class Engine {
 public:
  // Loads the models (minutes for large ones) and starts the engine's thread. Errors name the option or memory that
  // does not fit.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, const Progress& progress = {});
  // For node_rank above 0: loads its part of the models and computes what node 0 asks for, on this thread, until node
  // 0's engine ends. Errors as create(); kUnavailable: node 0 is gone, or this device has failed. If the device hangs,
  // on_device_failure is called. `started`, unless empty, is called when all nodes have met and the models are loaded.
  static Status follow(const EngineOptions& options, const Progress& progress = {},
                       const std::function<void()>& started = {});
  // For a process that an engine with restart_on_device_error started: runs the device for that engine, with its
  // options, on this thread, until the engine ends. Takes over the descriptor. Errors as create(); they are also sent
  // to the engine. If the engine's process is gone, this process ends at once with status 1.
  static Status compute(int descriptor);
  virtual ~Engine() = default;  // cancels running requests: each still gets its last event

  // Checks and queues a request. If it returns an id, `sink` gets events until the one with `finish`, the first of them
  // possibly before submit() returns (Event::id names the request); if it returns an error, none.
  virtual Result<RequestId> submit(GenerateRequest request, EventSink sink) = 0;
  // Whether submit() would have to compile this grammar, which takes time and may have to wait for other compilations.
  virtual bool compiles(const GrammarSpec& grammar) const = 0;
  // Compiles a request's grammar like submit(), which then finds it, with the same errors. Returns sentences on parts
  // that are interpreted otherwise than the grammar says; mostly none.
  virtual Result<std::vector<std::string>> check_grammar(const GenerateRequest& request) const = 0;
  // Ends a request at the next step; no effect if it has ended already.
  virtual void cancel(RequestId id) = 0;
  // Takes effect from the next step on. Blocks are drafted only in some lengths, chosen at the start; for another
  // number of tokens, the next longer block is drafted and so many of its tokens are verified. kInvalidArgument: more
  // tokens than a block drafts; kFailedPrecondition: there is no drafter, there are two, which know only kAuto and 0
  // tokens, or kAuto was not set at the start, when the costs of steps are measured.
  virtual Status set_verify(const VerifyPolicy& policy) = 0;
  // EngineOptions::target_step_ms from the next step on; 0: no bound. REQUIRES: not negative.
  virtual void set_target_step_ms(int milliseconds) = 0;
  // Drops cached prefixes that no running request uses.
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
  // A picture file (PNG, JPEG, WebP, the first frame of a GIF) as the model sees it, for a prompt: `begin` is the
  // caller's. `pixels` false: only its size, which its header says. A file that was read a short time ago in the same
  // GenerateRequest::cache_namespace gives the same vector of pixels, without decoding. `cancelled` may be null.
  // kInvalidArgument says what is wrong with the file; kResourceExhausted: other pictures fill the memory;
  // kUnimplemented: no EngineInfo::pictures.
  virtual Result<PromptPicture> read_picture(std::string_view /*file*/, bool /*pixels*/,
                                             std::string_view /*cache_namespace*/,
                                             const std::atomic<bool>* /*cancelled*/) const {
    return Error{ErrorCode::kUnimplemented, "This model takes text alone: leave the pictures out."};
  }
};

}  // namespace volley
