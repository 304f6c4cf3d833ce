// Messages between the nodes of one engine: calls within the limits of some model, and answers.
#include "fuzz.h"
#include "nodes/calls.h"
#include "nodes/limits_for_test.h"
#include "nodes/replies.h"

using namespace volley;

namespace {

void check(std::span<const decode::RoundSegment> segments) {
  fuzz::require(segments.size() <= 4);
  for (const decode::RoundSegment& segment : segments) {
    fuzz::require(segment.slot >= 0 && segment.slot < 4 && segment.draft >= 0 && segment.draft < 8);
    fuzz::require(segment.start >= -1 && segment.start + std::ssize(segment.known) <= 100);
    for (const TokenId token : segment.known) fuzz::require(token >= 0 && token < 50);
    for (const TokenId token : segment.scored) fuzz::require(token >= 0 && token < 50);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [reply, text] = fuzz::choose(data, size, 2);
  net::Frame frame;
  const auto bytes = std::as_bytes(std::span(text));
  frame.payload.assign(bytes.begin(), bytes.end());
  frame.kind = reply != 0 ? 200 : 100;
  if (reply != 0) {
    (void)nodes::read_reply(frame);
    return 0;
  }
  const auto call = nodes::read_call(frame, nodes::limits());
  const auto* command = call.ok() ? std::get_if<decode::Command>(&call->message) : nullptr;
  if (command == nullptr) return 0;
  if (const auto* step = std::get_if<decode::Enqueue>(command)) check(step->segments);
  if (const auto* step = std::get_if<decode::Reserve>(command)) check(step->segments);
  if (const auto* started = std::get_if<decode::StartSlot>(command)) {
    const auto& [slot, start] = *started;
    fuzz::require(slot < 4 && !start.prompt.empty() && start.prompt.size() + start.output.size() <= 100);
  }
  if (const auto* page = std::get_if<decode::SetPage>(command)) {
    fuzz::require(page->group >= 0 && page->group < 2 && page->index >= 0 && page->index < 7);
    fuzz::require(page->page.value <= 10);
  }
  return 0;
}
