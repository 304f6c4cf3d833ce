#include "nodes/replies.h"

#include "base/mix.h"
#include "net/fields.h"

namespace volley::nodes {
namespace {

using net::Fields;

constexpr uint32_t kReply = 200;

constexpr size_t kMostSentence = 8 << 10;
// The frame's limit bounds lists, too.
constexpr uint32_t kMostValues = kMostProcessReplyBytes / sizeof(int32_t);
constexpr int64_t kMost = int64_t{1} << 60;

void fields(Fields&, std::monostate&) {}

void fields(Fields& f, int64_t& count) {
  f.within(count, 0, kMost, "a count");
}

void fields(Fields& f, Ready& ready) {
  f.within(ready.threads, 0, 1 << 20, "the number of threads");
  for (int64_t* bytes : {&ready.weight_bytes, &ready.target_bytes, &ready.state_bytes}) fields(f, *bytes);
  decode::StepTraits& traits = ready.traits;
  f.within(traits.depth, 1, 2, "the number of steps under way");
  f.within(traits.block_size, 1, 1 << 20, "the block size");
  f.within(traits.most_shared_rows, 0, 1 << 30, "the number of rows to share out");
  f.array(traits.row_buckets, 1 << 20, "the list of rows");
  f.list(traits.draft_lengths, decode::kMostDrafters, "the number of drafters",
         [&f](std::vector<int32_t>& lengths) { f.array(lengths, 1 << 20, "the list of drafts"); });
  f.text(ready.device, kMostSentence, "the device");
}

void fields(Fields& f, Status& status) {
  bool ok = status.ok();
  f.values(ok);
  if (ok) return;
  Error error = f.reads() ? Error{} : status.error();
  auto code = static_cast<uint32_t>(error.code);
  f.within(code, 0, static_cast<uint32_t>(ErrorCode::kInternal), "the error");
  f.text(error.message, kMostSentence, "the error's sentence");
  status = Error{static_cast<ErrorCode>(code), std::move(error.message)};
}

void fields(Fields& f, std::vector<PositionLogprobs>& positions) {
  f.list(positions, kMostValues, "the number of positions", [&f](PositionLogprobs& position) {
    f.values(position.chosen.token, position.chosen.logprob);
    f.list(position.top, ops::kMaxLogprobs, "the number of logprobs",
           [&f](TokenLogprob& one) { f.values(one.token, one.logprob); });
  });
}

void fields(Fields& f, decode::RoundResult& result) {
  f.array(result.tokens, kMostValues, "a step's tokens");
  f.values(result.drafted);
  f.array(result.confidence, kMostValues, "a step's confidence");
  f.within(result.accepted, 0, static_cast<int32_t>(result.tokens.size()), "the accepted tokens");
  f.values(result.ended, result.exhausted, result.finite);
  fields(f, result.logprobs);
  fields(f, result.scores);
}

void fields(Fields& f, decode::StepResults& step) {
  f.list(step.results, kMostValues, "the number of results", [&f](decode::RoundResult& one) { fields(f, one); });
  auto arrived = int64_t{std::chrono::nanoseconds(step.times.arrived.time_since_epoch()).count()};
  f.values(step.times.draft, step.times.rest, arrived);  // by the clock of the machine
  step.times.arrived = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(arrived));
  decode::PhaseTimes& phases = step.phases;
  f.values(phases.draft, phases.target, phases.choose, phases.commit, phases.device, phases.idle);
  fields(f, step.experts_touched);
}

void fields(Fields& f, decode::Seen& seen) {
  if (seen.vectors == nullptr) seen.vectors = std::make_shared<std::vector<float>>();
  f.array(*seen.vectors, kMostValues, "a picture's vectors");
  f.values(seen.seconds);
}

void fields(Fields& f, Answer& answer) {
  f.one_of(answer.answer, "the kind of an answer", [&f](auto& one) { fields(f, one); });
}

void fields(Fields& f, Report& report) {
  f.values(report.digest);
  fields(f, report.experts_touched);
}

void fields(Fields& f, Failed& failed) {
  f.text(failed.sentence, kMostSentence, "the sentence");
}

void fields(Fields& f, Loading& loading) {
  f.text(loading.phase, kMostSentence, "the phase");
  f.within(loading.fraction, 0, 1, "the fraction");
}

void fields(Fields& f, MaskQuestion& question) {
  f.list(question.drafted, kMostValues, "the number of questions",
         [&f](std::vector<TokenId>& drafted) { f.array(drafted, kMostValues, "the drafted tokens"); });
}

void fields_of(Fields& f, Reply& reply) {
  f.one_of(reply, "the kind of a reply", [&f](auto& one) { fields(f, one); });
}

}  // namespace

void append_reply(Bytes& out, Reply reply) {
  Fields f;
  fields_of(f, reply);
  net::append_frame(out, kReply, f.written());
}

Result<Reply> read_reply(const net::Frame& frame) {
  if (frame.kind != kReply) {
    return invalid_argument("a message of an unknown kind came (" + std::to_string(frame.kind) + ")");
  }
  Fields f(frame.payload);
  Reply reply;
  fields_of(f, reply);
  VOLLEY_RETURN_IF_ERROR(f.finish("an answer"));
  return reply;
}

uint64_t digest_of(std::span<const decode::RoundResult> results) {
  uint64_t digest = results.size();
  const auto add = [&digest](uint64_t value) { digest = mix_bits(digest + kSplitMixStep + value); };
  for (const decode::RoundResult& result : results) {
    add(result.tokens.size());
    for (const TokenId token : result.tokens) add(static_cast<uint64_t>(token));
    add((result.ended ? 1u : 0u) + (result.finite ? 2u : 0u));
  }
  return digest;
}

}  // namespace volley::nodes
