#include "nodes/assignment.h"

namespace volley::nodes {
namespace {

constexpr uint32_t kAssignment = 300;
constexpr size_t kMostSizes = 4096;

}  // namespace

void append_assignment(Bytes& out, const Assignment& assignment) {
  net::ByteWriter w;
  w.put(assignment.replica);
  w.put(assignment.max_num_seqs);
  put_facts(w, assignment.facts);
  w.put_array(std::span<const int64_t>(assignment.sizes));
  net::append_frame(out, kAssignment, w.bytes());
}

Result<Assignment> read_assignment(const net::Frame& frame) {
  if (frame.kind != kAssignment) return invalid_argument("another message came than an assignment");
  net::ByteReader r(frame.payload);
  Assignment assignment;
  assignment.replica = r.take_within<int32_t>(0, 1 << 20, "the replica");
  assignment.max_num_seqs = r.take_within<int32_t>(0, 1 << 30, "the number of slots");
  assignment.facts = take_facts(r);
  assignment.sizes = r.take_array<int64_t>(kMostSizes, "the list of sizes");
  VOLLEY_RETURN_IF_ERROR(r.finish("an assignment"));
  return assignment;
}

}  // namespace volley::nodes
