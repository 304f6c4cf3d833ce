#include "nodes/replies.h"

#include "base/mix.h"
#include "net/bytes.h"

namespace volley::nodes {
namespace {

using net::ByteReader;
using net::ByteWriter;

enum Kind : uint32_t { kReady = 200, kAnswer, kReport, kFailed };

constexpr size_t kMostSentence = 8 << 10;

std::string_view cut(const std::string& sentence) {
  return std::string_view(sentence).substr(0, kMostSentence);
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
};

}  // namespace

void append_reply(Bytes& out, const Reply& reply) {
  std::visit(Append{out}, reply);
}

Result<Reply> read_reply(const net::Frame& frame) {
  constexpr int64_t kMost = int64_t{1} << 60;
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
