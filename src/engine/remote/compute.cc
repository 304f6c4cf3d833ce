// Engine::compute: a process that owns the device for an engine in another process.
#include <volley/engine.h>

#include "engine/remote/follow.h"
#include "engine/remote/node_setup.h"
#include "engine/start/start_error.h"
#include "nodes/assignment.h"

namespace volley {
namespace engine {
namespace {

constexpr std::chrono::seconds kForTheAssignment(10);

struct Assigned {
  EngineOptions options;
  ResolvedModels models;
};

Result<Assigned> receive_assignment(net::Connection& connection) {
  VOLLEY_ASSIGN(const net::Frame frame,
                net::receive_frame(connection, nodes::kMostAssignmentBytes, net::after(kForTheAssignment)));
  VOLLEY_ASSIGN(const nodes::Assignment assignment, nodes::read_assignment(frame));
  Assigned assigned = {assignment.options, {}};
  VOLLEY_ASSIGN(assigned.models, resolve_models(assigned.options, 0, assignment.available_bytes));
  VOLLEY_ASSIGN(const std::vector<nodes::Fact> facts, node_facts(assigned.options, assigned.models));
  if (const auto what = nodes::first_difference(facts, assignment.facts)) {
    return failed_precondition("The process that computes finds something else than the engine did: " + what->name +
                               " is " + what->here + " there, and " + what->there + " in the engine.");
  }
  if (assignment.sizes.size() != sizes_of(assigned.models).size()) {
    return failed_precondition("the models have other cache groups here");
  }
  take_sizes(assignment.sizes, assigned.models);
  return assigned;
}

Result<Assigned> take_assignment(net::Connection& connection) {
  try {
    return receive_assignment(connection);
  } catch (...) {
    return start_error();
  }
}

}  // namespace
}  // namespace engine

Status Engine::compute(int descriptor) {
  std::unique_ptr<net::Connection> connection = net::Connection::adopt(descriptor);
  Result<engine::Assigned> assigned = engine::take_assignment(*connection);
  if (!assigned.ok()) {
    nodes::Bytes out;
    nodes::append_reply(out, nodes::Failed{assigned.error().message});
    (void)connection->send(out);  // a lost engine needs no answer
    return assigned.error();
  }
  nodes::Links links;
  links.calls.push_back(std::move(connection));
  return engine::follow_links(assigned->options, assigned->models, std::move(links), {}, {});
}

}  // namespace volley
