#include "nodes/assignment.h"

#include "net/bytes.h"

namespace volley::nodes {
namespace {

constexpr uint32_t kAssignment = 300;
constexpr size_t kMostFacts = 256, kMostText = 64 << 10, kMostSizes = 4096;

}  // namespace

void append_assignment(Bytes& out, const Assignment& assignment) {
  net::ByteWriter w;
  w.put(assignment.replica);
  w.put(assignment.max_num_seqs);
  w.put(static_cast<uint32_t>(assignment.facts.size()));
  for (const Fact& fact : assignment.facts) {
    w.put_string(fact.name);
    w.put_string(fact.value);
  }
  w.put_array(std::span<const int64_t>(assignment.sizes));
  net::append_frame(out, kAssignment, w.bytes());
}

Result<Assignment> read_assignment(const net::Frame& frame) {
  if (frame.kind != kAssignment) return invalid_argument("another message came than an assignment");
  net::ByteReader r(frame.payload);
  Assignment assignment;
  assignment.replica = r.take_within<int32_t>(0, 1 << 20, "the replica");
  assignment.max_num_seqs = r.take_within<int32_t>(0, 1 << 30, "the number of slots");
  const auto facts = r.take_within<uint32_t>(0, kMostFacts, "the number of facts");
  for (uint32_t i = 0; i < facts && !r.failed(); ++i) {
    Fact fact;
    fact.name = r.take_string(kMostText, "the name of a fact");
    fact.value = r.take_string(kMostText, "a fact");
    assignment.facts.push_back(std::move(fact));
  }
  assignment.sizes = r.take_array<int64_t>(kMostSizes, "the list of sizes");
  VOLLEY_RETURN_IF_ERROR(r.finish("an assignment"));
  return assignment;
}

std::string difference(const std::vector<Fact>& asked, const std::vector<Fact>& here) {
  for (size_t i = 0; i < std::max(asked.size(), here.size()); ++i) {
    const Fact none;
    const Fact &one = i < asked.size() ? asked[i] : none, &other = i < here.size() ? here[i] : none;
    if (one.name == other.name && one.value == other.value) continue;
    return "the process that computes has other options or files: " + (one.name.empty() ? other.name : one.name) +
           " is " + other.value + " there, and " + one.value + " here";
  }
  return "";
}

}  // namespace volley::nodes
