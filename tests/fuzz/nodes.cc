// What nodes of one engine say to one another: calls within the limits of some model, and answers.
#include "fuzz.h"
#include "nodes/calls.h"
#include "nodes/limits_for_test.h"
#include "nodes/replies.h"

using namespace volley;

namespace {

void check(const nodes::Segments& step) {
  fuzz::require(step.segments.size() <= 4);
  for (const spec::RoundSegment& segment : step.segments) {
    fuzz::require(segment.slot >= 0 && segment.slot < 4 && segment.draft >= 0 && segment.draft < 8);
    fuzz::require(segment.start >= -1 && segment.start + std::ssize(segment.known) <= 100);
    for (const TokenId token : segment.known) fuzz::require(token >= 0 && token < 50);
    for (const TokenId token : segment.scored) fuzz::require(token >= 0 && token < 50);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [kind, text] = fuzz::choose(data, size, 32);
  net::Frame frame;
  const auto bytes = std::as_bytes(std::span(text));
  frame.payload.assign(bytes.begin(), bytes.end());
  frame.kind = kind < 16 ? 100u + kind : 200u + kind - 16;
  if (kind >= 16) {
    (void)nodes::read_reply(frame);
    return 0;
  }
  const auto call = nodes::read_call(frame, nodes::limits());
  if (!call.ok()) return 0;
  if (const auto* step = std::get_if<nodes::Enqueue>(&*call)) check(step->of);
  if (const auto* step = std::get_if<nodes::Reserve>(&*call)) check(step->of);
  if (const auto* start = std::get_if<nodes::StartSlot>(&*call)) {
    fuzz::require(start->slot < 4 && !start->prompt.empty() && start->prompt.size() + start->output.size() <= 100);
  }
  if (const auto* page = std::get_if<nodes::SetPage>(&*call)) {
    fuzz::require(page->group < 2 && page->index >= 0 && page->index < 7 && page->page.value <= 10);
  }
  return 0;
}
