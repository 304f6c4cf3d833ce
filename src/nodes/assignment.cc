#include "nodes/assignment.h"

#include <limits>

namespace volley::nodes {
namespace {

constexpr uint32_t kAssignment = 300;
constexpr size_t kMostSizes = 4096;

}  // namespace

void append_assignment(Bytes& out, const Assignment& assignment) {
  net::ByteWriter w;
  put_options(w, assignment.options);
  w.put(assignment.available_bytes);
  put_facts(w, assignment.facts);
  w.put_array(std::span<const int64_t>(assignment.sizes));
  net::append_frame(out, kAssignment, w.bytes());
}

Result<Assignment> read_assignment(const net::Frame& frame) {
  if (frame.kind != kAssignment) return invalid_argument("another message came than an assignment");
  net::ByteReader r(frame.payload);
  Assignment assignment;
  assignment.options = take_options(r);
  assignment.available_bytes = r.take_within<int64_t>(0, std::numeric_limits<int64_t>::max(), "the memory");
  assignment.facts = take_facts(r);
  assignment.sizes = r.take_array<int64_t>(kMostSizes, "the list of sizes");
  VOLLEY_RETURN_IF_ERROR(r.finish("an assignment"));
  return assignment;
}

}  // namespace volley::nodes
