#include "serve/testing/fake_engine.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

namespace volley::serve {
namespace {

constexpr TokenId kBeginToken = 256;  // the token that add_special_tokens puts first
constexpr std::string_view kPlaceholder = "<pad>";

}  // namespace

FakeEngine::FakeEngine(Writer writer, std::chrono::microseconds tick) : writer_(std::move(writer)), tick_(tick) {
  info_.architecture = "fake";
  info_.vocab_size = 300;
  info_.max_model_len = 4096;
  info_.block_size = 8;
  info_.default_sampling.temperature = 0.7f;
  info_.default_sampling.top_k = 20;
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Running& running : running_) running.cancelled = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<RequestId> FakeEngine::submit(GenerateRequest request, EventSink sink) {
  if (request.grammar && request.grammar->text.find("endless") != std::string::npos) {
    ++compiling_;
    while (!request.cancelled || !*request.cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --compiling_;
    return Error{ErrorCode::kCancelled, "cancelled"};
  }
  const std::lock_guard lock(mutex_);
  if (refusal_ && --accepted_first_ < 0) return *refusal_;
  submitted_.push_back(request);
  Running running;
  running.id = next_id_++;
  running.script = writer_ ? writer_(request) : FakeScript{};
  running.usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  running.usage.cached_tokens = running.script.cached_tokens;
  running.usage.drafted_tokens = running.script.drafted_tokens;
  running.usage.accepted_tokens = running.script.accepted_tokens;
  running.request = std::move(request);
  running.sink = std::move(sink);
  const RequestId id = running.id;
  running_.push_back(std::move(running));
  changed_.notify_all();
  return id;
}

void FakeEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (Running& running : running_) {
    if (running.id == id) running.cancelled = true;
  }
}

Event FakeEngine::step(Running& running) {
  Event event;
  event.id = running.id;
  const FakeScript& script = running.script;
  const bool script_over = running.next_piece == script.pieces.size();
  const auto finish_with = [&](FinishReason reason) {
    Finish& finish = event.finish.emplace();
    finish.reason = reason;
    if (finish.reason == FinishReason::kError) finish.error = script.error;
    if (finish.reason == FinishReason::kStop) {
      finish.stop_text = script.stop_text;
      finish.stop_token = script.stop_token;
    }
    finish.usage = running.usage;
  };
  if (running.cancelled || script_over) {
    finish_with(running.cancelled ? FinishReason::kCancelled : script.reason);
    return event;
  }
  if (running.next_piece == 0 && running.request.prompt_logprobs >= 0 && running.usage.completion_tokens == 0) {
    for (size_t i = 1; i < running.request.prompt.size(); ++i) {
      PositionLogprobs position{{running.request.prompt[i], -1.5f}, {}};
      for (int k = 0; k < running.request.prompt_logprobs; ++k) position.top.push_back({'a' + k, -0.25f - float(k)});
      event.prompt_logprobs.push_back(std::move(position));
    }
  }
  event.text = script.pieces[running.next_piece++];
  if (script.endless) running.next_piece %= script.pieces.size();
  for (const char c : event.text) {
    event.tokens.push_back(static_cast<unsigned char>(c));
    if (running.request.sampling.logprobs < 0) continue;
    PositionLogprobs position{{event.tokens.back(), -0.5f}, {}};
    for (int k = 0; k < running.request.sampling.logprobs; ++k) position.top.push_back({'a' + k, -0.5f - float(k)});
    event.logprobs.push_back(std::move(position));
  }
  running.usage.completion_tokens += static_cast<int32_t>(event.tokens.size());
  if (script.at_once && running.next_piece == script.pieces.size()) finish_with(script.reason);
  return event;
}

void FakeEngine::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !running_.empty(); });
    if (running_.empty()) return;
    // Sinks run without the lock, as in the real engine, because they may call cancel().
    std::vector<std::pair<EventSink, Event>> news;
    for (Running& running : running_) news.emplace_back(running.sink, step(running));
    for (const auto& [sink, event] : news) {
      if (event.finish) std::erase_if(running_, [id = event.id](const Running& running) { return running.id == id; });
      const bool cancelled = event.finish && event.finish->reason == FinishReason::kCancelled;
      stats_.requests_cancelled += cancelled;
      stats_.requests_finished += event.finish && !cancelled;
      stats_.generated_tokens += static_cast<int64_t>(event.tokens.size());
    }
    lock.unlock();
    for (auto& [sink, event] : news) sink(event);
    std::this_thread::sleep_for(tick_);
    lock.lock();
  }
}

EngineStats FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.requests_running = static_cast<int64_t>(running_.size());
  return stats;
}

Result<std::vector<TokenId>> FakeEngine::encode_within(std::string_view text, bool add_special_tokens,
                                                       const EncodeLimits& limits) const {
  if (text.find("unencodable") != std::string_view::npos) return invalid_argument("this text cannot be encoded");
  if (text.find("stuck") != std::string_view::npos) {
    ++encoding_;
    while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --encoding_;
  }
  if (text.find("endless") != std::string_view::npos) {
    ++encoding_;
    while (!limits.cancelled || !limits.cancelled->load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --encoding_;
    return Error{ErrorCode::kCancelled, "cancelled"};
  }
  const size_t whole = text.size();
  std::vector<TokenId> ids;
  if (add_special_tokens) ids.push_back(kBeginToken);
  // A token is a byte, except for a run of spaces as long as a real vocabulary's.
  static const std::string run(64, ' ');
  while (!text.empty() && (limits.last_tokens > 0 || ids.size() <= limits.max_tokens)) {
    ids.push_back(static_cast<unsigned char>(text.front()));
    text.remove_prefix(text.starts_with(run) ? run.size() : 1);
  }
  longest_encoded_ = std::max<size_t>(longest_encoded_, whole - text.size());
  if (limits.last_tokens > 0 && ids.size() > limits.last_tokens) {
    ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(limits.last_tokens));
  }
  return ids;
}

std::string FakeEngine::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  for (const TokenId id : ids) {
    if (info_.pictures && id == info_.pictures->token) {
      text += kPlaceholder;
    } else if (id < 128) {
      text.push_back(static_cast<char>(id));
    } else if (id < kBeginToken) {
      text += "\xEF\xBF\xBD";
    } else if (!skip_special_tokens) {
      text += "<s>";
    }
  }
  return text;
}

Result<std::string> FakeEngine::render_chat(const ChatMessages& chat) const {
  if (chat.messages_json.find("no template") != std::string::npos) {
    return failed_precondition("the model has no chat template");
  }
  std::string messages = chat.messages_json;
  constexpr std::string_view kPart = R"({"type":"image"})";
  for (size_t at = 0; info_.pictures && (at = messages.find(kPart, at)) != std::string::npos;) {
    messages.replace(at, kPart.size(), kPlaceholder);
  }
  return messages + "|" + chat.template_kwargs_json + "|" + (chat.add_generation_prompt ? "1" : "0") + "|" +
         (chat.continue_final_message ? "1" : "0") + (chat.tools_json.empty() ? "" : "|" + chat.tools_json);
}

Result<PromptPicture> FakeEngine::read_picture(std::string_view file, bool pixels, std::string_view cache_namespace,
                                               const std::atomic<bool>*) const {
  PromptPicture picture;
  const std::string text(file);
  if (std::sscanf(text.c_str(), "%dx%d", &picture.width, &picture.height) != 2) {
    return invalid_argument("the picture is no file of a test");
  }
  if (pixels) {
    picture.rgb = std::make_shared<const std::vector<uint8_t>>(size_t(picture.width) * size_t(picture.height) * 3);
    const std::lock_guard lock(mutex_);
    picture_space_ = cache_namespace;
  }
  return picture;
}

void FakeEngine::refuse_submits(Error error, int accepted_first) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(error);
  accepted_first_ = accepted_first;
}

std::string FakeEngine::picture_space() const {
  const std::lock_guard lock(mutex_);
  return picture_space_;
}

std::vector<GenerateRequest> FakeEngine::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

int FakeEngine::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(running_.size());
}

int FakeEngine::cancelled() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(stats_.requests_cancelled);
}

}  // namespace volley::serve
