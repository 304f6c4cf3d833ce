// Engine::compute: a process that has the device for an engine in another one.
#include <volley/engine.h>

#include "engine/follow.h"
#include "engine/node_setup.h"
#include "engine/replica_options.h"
#include "nodes/assignment.h"

namespace volley {
namespace engine {
namespace {

constexpr std::chrono::seconds kForTheAssignment(10);

struct Assigned {
  EngineOptions options;  // of the replica
  ResolvedModels models;
};

Result<Assigned> take_assignment(EngineOptions options, net::Connection& connection) {
  VOLLEY_ASSIGN(const net::Frame frame,
                net::receive_frame(connection, nodes::kMostAssignmentBytes, net::after(kForTheAssignment)));
  VOLLEY_ASSIGN(const nodes::Assignment assignment, nodes::read_assignment(frame));
  options.max_num_seqs = assignment.max_num_seqs;
  VOLLEY_ASSIGN(const std::vector<EngineOptions> replicas, replica_options(options));
  if (assignment.replica >= std::ssize(replicas)) return invalid_argument("there is no such replica");
  Assigned assigned = {replicas[static_cast<size_t>(assignment.replica)], {}};
  VOLLEY_ASSIGN(assigned.models, resolve_models(assigned.options, assignment.replica));
  VOLLEY_ASSIGN(const std::vector<nodes::Fact> facts, node_facts(assigned.options, assigned.models));
  if (const auto what = nodes::first_difference(facts, assignment.facts)) {
    return failed_precondition("The process that computes has other options or files than the engine: " + what->name +
                               " is " + what->here + " there, and " + what->there + " in the engine.");
  }
  if (assignment.sizes.size() != sizes_of(assigned.models).size()) {
    return failed_precondition("the models have other cache groups here");
  }
  take_sizes(assignment.sizes, assigned.models);
  return assigned;
}

}  // namespace
}  // namespace engine

Status Engine::compute(const EngineOptions& options, int descriptor) {
  std::unique_ptr<net::Connection> connection = net::Connection::adopt(descriptor);
  Result<engine::Assigned> assigned = engine::take_assignment(options, *connection);
  if (!assigned.ok()) {
    nodes::Bytes out;
    nodes::append_reply(out, nodes::Failed{assigned.error().message});
    (void)connection->send(out);  // who is gone need not know
    return assigned.error();
  }
  nodes::Links links;
  links.calls.push_back(std::move(connection));
  return engine::follow_links(assigned->options, assigned->models, std::move(links), {}, {});
}

}  // namespace volley
