#include "nodes/replies.h"

#include "base/mix.h"
#include "net/bytes.h"

namespace volley::nodes {
namespace {

using net::ByteReader;
using net::ByteWriter;

enum Kind : uint32_t { kReady = 200, kAnswer, kReport, kFailed, kLoading, kTraits, kMaskQuestion, kStepResults };

constexpr size_t kMostSentence = 8 << 10;
// The frame bounds arrays, too.
constexpr size_t kMostValues = kMostProcessReplyBytes / sizeof(int32_t);
constexpr int64_t kMost = int64_t{1} << 60;

std::string_view cut(const std::string& sentence) {
  return std::string_view(sentence).substr(0, kMostSentence);
}

void put_logprobs(ByteWriter& w, const std::vector<PositionLogprobs>& positions) {
  const auto put = [&w](const TokenLogprob& one) {
    w.put(one.token);
    w.put(one.logprob);
  };
  w.put(static_cast<uint32_t>(positions.size()));
  for (const PositionLogprobs& position : positions) {
    put(position.chosen);
    w.put(static_cast<uint32_t>(position.top.size()));
    for (const TokenLogprob& one : position.top) put(one);
  }
}

std::vector<PositionLogprobs> take_logprobs(ByteReader& r) {
  const auto take = [&r] {
    TokenLogprob one;
    one.token = r.take<TokenId>();
    one.logprob = r.take<float>();
    return one;
  };
  std::vector<PositionLogprobs> positions;
  const auto count = r.take<uint32_t>();
  for (uint32_t i = 0; i < count && !r.failed(); ++i) {
    PositionLogprobs& position = positions.emplace_back();
    position.chosen = take();
    const auto top = r.take_within<uint32_t>(0, ops::kMaxLogprobs, "the number of logprobs");
    for (uint32_t j = 0; j < top && !r.failed(); ++j) position.top.push_back(take());
  }
  return positions;
}

void put_result(ByteWriter& w, const spec::RoundResult& result) {
  w.put_array(std::span<const TokenId>(result.tokens));
  w.put(result.drafted);
  w.put_array(std::span<const float>(result.confidence));
  w.put(result.accepted);
  for (const bool flag : {result.ended, result.exhausted, result.finite}) w.put(flag);
  put_logprobs(w, result.logprobs);
  put_logprobs(w, result.scores);
}

spec::RoundResult take_result(ByteReader& r) {
  spec::RoundResult result;
  result.tokens = r.take_array<TokenId>(kMostValues, "a step's tokens");
  result.drafted = r.take<int32_t>();
  result.confidence = r.take_array<float>(kMostValues, "a step's confidence");
  result.accepted = r.take_within<int32_t>(0, static_cast<int32_t>(result.tokens.size()), "the accepted tokens");
  for (bool* flag : {&result.ended, &result.exhausted, &result.finite}) *flag = r.take<bool>();
  result.logprobs = take_logprobs(r);
  result.scores = take_logprobs(r);
  return result;
}

// The members of PhaseTimes and StepTimes, for both directions.
template <typename Times, typename F>
void each_phase(Times& times, const F& f) {
  for (auto* seconds : {&times.draft, &times.target, &times.choose, &times.commit, &times.device, &times.idle}) {
    f(*seconds);
  }
}

StepResults take_results(ByteReader& r) {
  StepResults all;
  const auto count = r.take<uint32_t>();
  for (uint32_t i = 0; i < count && !r.failed(); ++i) all.results.push_back(take_result(r));
  all.times.draft = r.take<double>();
  all.times.rest = r.take<double>();
  all.times.arrived = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(r.take<int64_t>()));
  each_phase(all.phases, [&r](double& seconds) { seconds = r.take<double>(); });
  all.experts_touched = r.take_within<int64_t>(0, kMost, "the number of experts");
  return all;
}

struct Append {
  Bytes& out;

  void operator()(const Ready& ready) const {
    ByteWriter w;
    w.put(ready.threads);
    for (const int64_t bytes : {ready.weight_bytes, ready.target_bytes, ready.state_bytes}) w.put(bytes);
    net::append_frame(out, kReady, w.bytes());
  }
  void operator()(const Answer& answer) const {
    ByteWriter w;
    w.put(answer.status.ok());
    if (!answer.status.ok()) {
      w.put(static_cast<uint32_t>(answer.status.error().code));
      w.put_string(cut(answer.status.error().message));
    }
    net::append_frame(out, kAnswer, w.bytes());
  }
  void operator()(const Report& report) const {
    ByteWriter w;
    w.put(report.digest);
    w.put(report.experts_touched);
    net::append_frame(out, kReport, w.bytes());
  }
  void operator()(const Failed& failed) const {
    ByteWriter w;
    w.put_string(cut(failed.sentence));
    net::append_frame(out, kFailed, w.bytes());
  }
  void operator()(const Loading& loading) const {
    ByteWriter w;
    w.put_string(cut(loading.phase));
    w.put(loading.fraction);
    net::append_frame(out, kLoading, w.bytes());
  }
  void operator()(const Traits& traits) const {
    ByteWriter w;
    for (const int32_t value : {traits.depth, traits.block_size, traits.most_shared_rows}) w.put(value);
    w.put_array(std::span<const int32_t>(traits.row_buckets));
    w.put_array(std::span<const int32_t>(traits.draft_lengths));
    w.put_string(cut(traits.device));
    net::append_frame(out, kTraits, w.bytes());
  }
  void operator()(const MaskQuestion& question) const {
    ByteWriter w;
    w.put(static_cast<uint32_t>(question.drafted.size()));
    for (const auto& drafted : question.drafted) w.put_array(std::span<const TokenId>(drafted));
    net::append_frame(out, kMaskQuestion, w.bytes());
  }
  void operator()(const StepResults& all) const {
    ByteWriter w;
    w.put(static_cast<uint32_t>(all.results.size()));
    for (const spec::RoundResult& result : all.results) put_result(w, result);
    w.put(all.times.draft);
    w.put(all.times.rest);
    w.put(int64_t{std::chrono::nanoseconds(all.times.arrived.time_since_epoch()).count()});
    each_phase(all.phases, [&w](double seconds) { w.put(seconds); });
    w.put(all.experts_touched);
    net::append_frame(out, kStepResults, w.bytes());
  }
};

}  // namespace

void append_reply(Bytes& out, const Reply& reply) {
  std::visit(Append{out}, reply);
}

Result<Reply> read_reply(const net::Frame& frame) {
  ByteReader r(frame.payload);
  Reply reply;
  switch (frame.kind) {
    case kReady: {
      Ready ready;
      ready.threads = r.take_within<int32_t>(0, 1 << 20, "the number of threads");
      for (int64_t* bytes : {&ready.weight_bytes, &ready.target_bytes, &ready.state_bytes}) {
        *bytes = r.take_within<int64_t>(0, kMost, "a number of bytes");
      }
      reply = ready;
      break;
    }
    case kAnswer: {
      Answer answer;
      if (!r.take<bool>()) {
        const auto code = r.take_within<uint32_t>(0, static_cast<uint32_t>(ErrorCode::kInternal), "the error");
        answer.status = Error{static_cast<ErrorCode>(code), r.take_string(kMostSentence, "the error's sentence")};
      }
      reply = std::move(answer);
      break;
    }
    case kReport: {
      Report report;
      report.digest = r.take<uint64_t>();
      report.experts_touched = r.take_within<int64_t>(0, kMost, "the number of experts");
      reply = report;
      break;
    }
    case kFailed:
      reply = Failed{r.take_string(kMostSentence, "the sentence")};
      break;
    case kLoading: {
      Loading loading;
      loading.phase = r.take_string(kMostSentence, "the phase");
      loading.fraction = r.take_within(0.0, 1.0, "the fraction");
      reply = std::move(loading);
      break;
    }
    case kTraits: {
      Traits traits;
      traits.depth = r.take_within<int32_t>(1, 2, "the number of steps under way");
      traits.block_size = r.take_within<int32_t>(1, 1 << 20, "the block size");
      traits.most_shared_rows = r.take_within<int32_t>(0, 1 << 30, "the number of rows to share out");
      traits.row_buckets = r.take_array<int32_t>(1 << 20, "the list of rows");
      traits.draft_lengths = r.take_array<int32_t>(1 << 20, "the list of drafts");
      traits.device = r.take_string(kMostSentence, "the device");
      reply = std::move(traits);
      break;
    }
    case kMaskQuestion: {
      MaskQuestion question;
      const auto count = r.take<uint32_t>();
      for (uint32_t i = 0; i < count && !r.failed(); ++i) {
        question.drafted.push_back(r.take_array<TokenId>(kMostValues, "the drafted tokens"));
      }
      reply = std::move(question);
      break;
    }
    case kStepResults:
      reply = take_results(r);
      break;
    default:
      return invalid_argument("a message of an unknown kind came (" + std::to_string(frame.kind) + ")");
  }
  VOLLEY_RETURN_IF_ERROR(r.finish("an answer"));
  return reply;
}

uint64_t digest_of(std::span<const spec::RoundResult> results) {
  uint64_t digest = results.size();
  const auto add = [&digest](uint64_t value) { digest = mix_bits(digest + kSplitMixStep + value); };
  for (const spec::RoundResult& result : results) {
    add(result.tokens.size());
    for (const TokenId token : result.tokens) add(static_cast<uint64_t>(token));
    add((result.ended ? 1u : 0u) + (result.finite ? 2u : 0u));
  }
  return digest;
}

}  // namespace volley::nodes
