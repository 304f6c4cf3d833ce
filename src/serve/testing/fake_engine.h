// An Engine without a model, for tests: a token is a byte, and a script decides each answer.
#pragma once

#include <volley/engine.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace volley::serve {

// One request's answer, one piece for each tick of the engine's thread.
struct FakeScript {
  std::vector<std::string> pieces = {"Hello", " world"};
  bool endless = false;  // repeats the pieces until cancelled
  bool at_once = false;  // the last piece comes with the end, as an engine's does
  FinishReason reason = FinishReason::kStop;
  std::optional<Error> error = {};            // with kError
  std::optional<std::string> stop_text = {};  // with kStop
  std::optional<TokenId> stop_token = {};
  int cached_tokens = 0, drafted_tokens = 0, accepted_tokens = 0;
};

class FakeEngine final : public Engine {
 public:
  using Writer = std::function<FakeScript(const GenerateRequest&)>;

  // `tick`: between two events of a request. `writer` runs in submit().
  explicit FakeEngine(Writer writer = {}, std::chrono::microseconds tick = std::chrono::microseconds(200));
  ~FakeEngine() override;

  // A grammar with "endless" compiles until it is cancelled.
  Result<RequestId> submit(GenerateRequest request, EventSink sink) override;
  bool compiles(const GrammarSpec& grammar) const override { return grammar.text.find("new") != std::string::npos; }
  // Decided by set_grammar_check(); by default a grammar has neither errors nor notes.
  Result<std::vector<std::string>> check_grammar(const GenerateRequest& request) const override {
    return grammar_check_ && request.grammar ? grammar_check_(*request.grammar) : std::vector<std::string>();
  }
  void cancel(RequestId id) override;
  Status set_verify(const VerifyPolicy&) override { return {}; }
  void set_target_step_ms(int) override {}
  void drop_prefix_cache() override {}
  const EngineInfo& info() const override { return info_; }
  EngineStats stats() const override;
  // A text with "stuck" takes until release(); one with "endless" takes until it is cancelled, and so does a chat.
  Result<std::vector<TokenId>> encode_within(std::string_view text, bool add_special_tokens,
                                             const EncodeLimits& limits) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  // "messages|kwargs|generation prompt|continue", and "|tools" if any; kFailedPrecondition if a message contains "no
  // template".
  Result<std::string> render_chat(const ChatMessages& chat) const override;
  // For an engine with EngineInfo::pictures, whose placeholder is "<pad>": a file is a text, "64x32", a picture black.
  Result<PromptPicture> read_picture(std::string_view file, bool pixels, std::string_view cache_namespace,
                                     const std::atomic<bool>* cancelled) const override;

  EngineInfo& mutable_info() { return info_; }  // before requests
  using GrammarCheck = std::function<Result<std::vector<std::string>>(const GrammarSpec&)>;
  void set_grammar_check(GrammarCheck check) { grammar_check_ = std::move(check); }  // before requests
  // submit()'s error after accepting `accepted_first` more requests.
  void refuse_submits(Error error, int accepted_first = 0);
  std::vector<GenerateRequest> submitted() const;  // in order
  std::string picture_space() const;               // the last picture's cache_namespace
  int running() const;
  int cancelled() const;
  size_t longest_encoded() const { return longest_encoded_; }  // bytes
  void release() { released_ = true; }
  int encoding() const { return encoding_; }    // endless texts under way
  int compiling() const { return compiling_; }  // endless grammars under way

 private:
  struct Running {
    RequestId id = 0;
    GenerateRequest request;
    EventSink sink;
    FakeScript script;
    size_t next_piece = 0;
    bool cancelled = false;
    Usage usage;
  };

  void loop();
  // The next event of a request. REQUIRES: mutex_.
  Event step(Running& running);

  EngineInfo info_;
  const Writer writer_;
  GrammarCheck grammar_check_;
  const std::chrono::microseconds tick_;
  mutable std::atomic<size_t> longest_encoded_{0};
  mutable std::atomic<int> encoding_{0};
  std::atomic<int> compiling_{0};
  std::atomic<bool> released_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<Running> running_;
  std::vector<GenerateRequest> submitted_;
  mutable std::string picture_space_;
  std::optional<Error> refusal_;
  int accepted_first_ = 0;  // requests to accept before refusal_ counts
  RequestId next_id_ = 1;
  EngineStats stats_;
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace volley::serve
