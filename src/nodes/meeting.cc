#include "nodes/meeting.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <random>

#include "base/check.h"
#include "net/fields.h"
#include "net/frame.h"
#include "nodes/introductions.h"

namespace volley::nodes {
namespace {

enum Kind : uint32_t { kHello = 1, kWelcome, kRefusal, kSums };

constexpr uint64_t kMagic = 0x31534e59454c4c56;  // "VLLEYNS1"
constexpr size_t kMostMessage = 1 << 20, kMostAddress = 8 << 10, kMostNumbers = 1024;
constexpr std::chrono::milliseconds kBetweenLooks(200);  // between checks that the nodes met so far are still there

struct Hello {
  uint64_t magic = kMagic;
  uint32_t protocol = kProtocol;  // another one: nothing but it and the node was read
  int32_t node = 0;
  uint16_t sums_port = 0;  // where it listens for the nodes after it
  std::vector<Fact> facts;
  std::vector<int64_t> numbers;
};

struct Welcome {
  uint64_t session = 0;  // by which connections for sums show that they belong together
  std::vector<int64_t> least;
  std::vector<net::Address> sums;  // each node's address; node 0's is the master's
};

// The first message of a connection for sums.
struct Sums {
  uint64_t session = 0;
  int32_t node = 0;
};

void fields(net::Fields& f, Hello& hello) {
  f.values(hello.magic, hello.protocol, hello.node);
  if (hello.magic != kMagic || hello.protocol != kProtocol) return;
  f.values(hello.sums_port);
  fields(f, hello.facts);
  f.array(hello.numbers, kMostNumbers, "the numbers");
}

void fields(net::Fields& f, Welcome& welcome) {
  f.values(welcome.session);
  f.array(welcome.least, kMostNumbers, "the numbers");
  f.list(welcome.sums, kMostMessage, "the number of nodes", [&f](net::Address& address) {
    f.text(address.host, kMostAddress, "an address");
    f.values(address.port);
  });
}

void fields(net::Fields& f, Sums& sums) {
  f.values(sums.session, sums.node);
}

void fields(net::Fields& f, std::string& sentence) {
  f.text(sentence, kMostMessage, "the sentence");
}

template <typename T>
Status send(net::Connection& connection, Kind kind, T message) {
  net::Fields f;
  fields(f, message);
  return net::send_frame(connection, kind, f.written());
}

template <typename T>
Result<T> read(const net::Frame& frame, const char* what) {
  net::Fields f(frame.payload);
  T message;
  fields(f, message);
  VOLLEY_RETURN_IF_ERROR(f.finish(what));
  return message;
}

// No value: not one of our nodes.
std::optional<Hello> read_hello(const net::Frame& frame) {
  net::Fields f(frame.payload);
  Hello hello;
  fields(f, hello);
  if (frame.kind != kHello || f.failed() || hello.magic != kMagic) return std::nullopt;
  if (hello.protocol == kProtocol && !f.finish("a hello").ok()) return std::nullopt;
  return hello;
}

Error unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

// At node 0's address.
Error stranger(const net::Address& at, const std::string& cause) {
  return unavailable("Whoever listens at " + net::to_string(at) + " is no node 0 of Volley: " + cause + ".");
}

std::string node_name(int node) {
  return "node " + std::to_string(node);
}

// The first difference; empty: none.
std::string difference(const std::vector<Fact>& here, const Hello& hello) {
  const auto sentence = [node = hello.node](const std::string& what, const std::string& theirs,
                                            const std::string& ours) {
    return "Node " + std::to_string(node) + " differs from node 0 in " + what + ": " + theirs + " there, " + ours +
           " on node 0. Start all nodes with the same program, models and options.";
  };
  if (hello.protocol != kProtocol) {
    return sentence("the protocol of nodes", std::to_string(hello.protocol), std::to_string(kProtocol));
  }
  if (const auto what = first_difference(here, hello.facts)) return sentence(what->name, what->there, what->here);
  return "";
}

std::string list_missing(const std::vector<std::optional<Hello>>& hellos) {
  std::string missing;
  for (size_t i = 1; i < hellos.size(); ++i) {
    if (!hellos[i]) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  }
  return missing;
}

void refuse(net::Connection& connection, const std::string& sentence) {
  (void)send(connection, kRefusal, sentence);  // a node that is gone does not matter here
}

using Check = std::function<Status()>;  // between checks that the nodes met so far are still there

// Returns the next connection for sums that names this session, and its node.
struct SumsConnection {
  std::unique_ptr<net::Connection> connection;
  int node = 0;
};
Result<SumsConnection> accept_sums(Introductions& introductions, uint64_t session, net::Deadline deadline,
                                   const Check& others) {
  for (;;) {
    VOLLEY_RETURN_IF_ERROR(others());
    auto newcomer = introductions.next(std::min(deadline, net::after(kBetweenLooks)));
    if (!newcomer && std::chrono::steady_clock::now() >= deadline) return unavailable("Nobody has come in time.");
    if (!newcomer || newcomer->frame.kind != kSums) continue;
    const Result<Sums> said = read<Sums>(newcomer->frame, "a hello");
    if (said.ok() && said->session == session) return SumsConnection{std::move(newcomer->connection), said->node};
  }
}

comm::NodeLink link_to(const Place& place, int node, std::unique_ptr<net::Connection> connection) {
  return {std::move(connection), place.first_rank(node), place.ranks_each()};
}

// Connections to the nodes after this one. listener: null for the last.
Status accept_later_nodes(const Place& place, net::Listener* listener, uint64_t session, net::Deadline deadline,
                          const Check& others, std::vector<comm::NodeLink>& links) {
  std::vector<bool> come(static_cast<size_t>(place.nodes));
  int missing = place.nodes - place.node - 1;
  if (missing == 0) return {};
  Introductions introductions(*listener, kMostMessage);
  while (missing > 0) {
    Result<SumsConnection> sums = accept_sums(introductions, session, deadline, others);
    VOLLEY_RETURN_IF_ERROR(others());
    if (!sums.ok()) return unavailable("Not all nodes have connected to " + node_name(place.node) + " for sums.");
    if (sums->node <= place.node || sums->node >= place.nodes || come[static_cast<size_t>(sums->node)]) continue;
    come[static_cast<size_t>(sums->node)] = true;
    links.push_back(link_to(place, sums->node, std::move(sums->connection)));
    --missing;
  }
  return {};
}

// Why this newcomer is not one of the missing nodes; empty: it is.
std::string objection(const Place& place, const Hello& hello) {
  if (hello.protocol != kProtocol) return difference({}, hello);
  if (hello.node >= 1 && hello.node < place.nodes) return "";
  return "There is no " + node_name(hello.node) + " of " + std::to_string(place.nodes) +
         ": --node-rank must be from 1 to " + std::to_string(place.nodes - 1) + " here.";
}

Result<Links> meet_as_first(const Place& place, const std::vector<Fact>& facts, const std::vector<int64_t>& numbers,
                            net::Deadline deadline) {
  const auto nodes = static_cast<size_t>(place.nodes);
  VOLLEY_ASSIGN(const std::unique_ptr<net::Listener> listener, net::Listener::bind(place.master, deadline));
  std::vector<std::optional<Hello>> hellos(nodes);
  std::vector<std::unique_ptr<net::Connection>> connections(nodes);
  Welcome welcome;
  Introductions introductions(*listener, kMostMessage);
  std::string refused;  // the answer to the last newcomer that was one
  std::random_device random;
  welcome.session = (uint64_t{random()} << 32) | random();
  for (;;) {
    for (size_t i = 1; i < nodes; ++i) {  // after the last has arrived, too: another may have gone since
      if (!connections[i] || !connections[i]->has_ended()) continue;
      connections[i].reset();  // the node may be started again
      hellos[i].reset();
    }
    if (std::all_of(hellos.begin() + 1, hellos.end(), [](const auto& hello) { return hello.has_value(); })) break;
    auto newcomer = introductions.next(std::min(deadline, net::after(kBetweenLooks)));
    if (!newcomer && std::chrono::steady_clock::now() < deadline) continue;
    if (!newcomer) {
      return unavailable("These nodes of " + std::to_string(nodes) + " have not come: " + list_missing(hellos) +
                         ". Start each with its --node-rank and with --master-addr and --master-port of node 0, which "
                         "listens at " +
                         net::to_string(listener->address()) + "." +
                         (refused.empty() ? "" : " The last that was refused: " + refused));
    }
    std::unique_ptr<net::Connection> connection = std::move(newcomer->connection);
    std::optional<Hello> hello = read_hello(newcomer->frame);
    if (!hello) continue;  // not a node, whoever sent it
    // The newcomer may be of an older engine, or no node at all: the missing nodes may still arrive.
    if (std::string sentence = objection(place, *hello); !sentence.empty()) {
      refuse(*connection, sentence);
      refused = std::move(sentence);
      continue;
    }
    if (const std::string sentence = difference(facts, *hello); !sentence.empty()) {
      refuse(*connection, sentence);
      return invalid_argument(sentence);
    }
    // A node of ours with the same facts always sends this many numbers, none negative.
    if (hello->numbers.size() != numbers.size() || std::ranges::any_of(hello->numbers, [](int64_t n) { return n < 0; }))
      continue;
    const auto node = static_cast<size_t>(hello->node);
    // A restarted node may connect before the end of its old connection shows here.
    if (connections[node]) refuse(*connections[node], "Another " + node_name(hello->node) + " has come in its place.");
    hellos[node] = std::move(hello);
    connections[node] = std::move(connection);
  }
  welcome.least = numbers;
  welcome.sums.resize(nodes);
  for (size_t i = 1; i < nodes; ++i) {
    welcome.sums[i] = {connections[i]->peer().host, hellos[i]->sums_port};
    for (size_t j = 0; j < numbers.size(); ++j) {
      welcome.least[j] = std::min(welcome.least[j], hellos[i]->numbers[j]);
    }
  }
  Links links;
  links.least = welcome.least;
  for (size_t i = 1; i < nodes; ++i) {
    const Status sent = send(*connections[i], kWelcome, welcome);
    if (!sent.ok()) {
      return unavailable("Node " + std::to_string(i) + " has gone before the start was over: " + sent.error().message +
                         ".");
    }
    links.calls.push_back(std::move(connections[i]));
  }
  const Check others = [&]() -> Status {
    for (size_t i = 1; i < nodes; ++i) {
      if (!links.calls[i - 1]->has_ended()) continue;
      return unavailable("Node " + std::to_string(i) + " has gone before the start was over.");
    }
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(accept_later_nodes(place, listener.get(), welcome.session, deadline, others, links.sums));
  return links;
}

Result<std::unique_ptr<net::Connection>> connect_sums(const Place& place, const net::Address& to, uint64_t session,
                                                      net::Deadline deadline, const Check& others) {
  for (;;) {
    VOLLEY_RETURN_IF_ERROR(others());
    auto connected = net::Connection::connect(to, std::min(deadline, net::after(kBetweenLooks)));
    if (!connected.ok() && std::chrono::steady_clock::now() < deadline) continue;
    VOLLEY_ASSIGN(std::unique_ptr<net::Connection> connection, std::move(connected));
    VOLLEY_RETURN_IF_ERROR(send(*connection, kSums, Sums{session, place.node}));
    return connection;
  }
}

Result<Links> meet_first(const Place& place, const std::vector<Fact>& facts, const std::vector<int64_t>& numbers,
                         net::Deadline deadline) {
  Result<std::unique_ptr<net::Connection>> connected = net::Connection::connect(place.master, deadline);
  if (!connected.ok()) {
    return unavailable(connected.error().message +
                       " Node 0 must be started, with this --master-addr and "
                       "--master-port.");
  }
  std::unique_ptr<net::Connection> first = std::move(*connected);
  // The nodes after this one connect to the address by which node 0 sees this one; if there are none, no node may
  // connect.
  std::unique_ptr<net::Listener> listener;
  if (place.node + 1 < place.nodes) {
    VOLLEY_ASSIGN(listener, net::Listener::bind({first->local_host(), 0}));
  }
  const uint16_t sums_port = listener != nullptr ? listener->port() : 0;
  const auto gone = [](const Error& error) {
    return unavailable("Node 0 has ended before the start was over: " + error.message + ".");
  };
  const Status sent = send(*first, kHello, Hello{kMagic, kProtocol, place.node, sums_port, facts, numbers});
  if (!sent.ok()) return gone(sent.error());
  const Result<net::Frame> answer = net::receive_frame(*first, kMostMessage, deadline);
  if (!answer.ok() && answer.error().code != ErrorCode::kUnavailable) {
    return stranger(place.master, answer.error().message);
  }
  if (!answer.ok() && !first->has_ended()) return unavailable("Node 0 is there, but not all nodes have come in time.");
  if (!answer.ok()) return gone(answer.error());
  if (answer->kind == kRefusal) {
    VOLLEY_ASSIGN(std::string sentence, read<std::string>(*answer, "the refusal of node 0"));
    return invalid_argument(std::move(sentence));
  }
  if (answer->kind != kWelcome) return stranger(place.master, "it says something else than a welcome");
  VOLLEY_ASSIGN(Welcome welcome, read<Welcome>(*answer, "the welcome of node 0"));
  if (welcome.sums.size() != static_cast<size_t>(place.nodes)) {
    return invalid_argument("The welcome of node 0 cannot be read: it is for another number of nodes.");
  }
  if (!std::ranges::equal(welcome.least, numbers,
                          [](int64_t least, int64_t own) { return least >= 0 && least <= own; })) {
    return gone(internal_error("its numbers are others"));
  }
  welcome.sums[0] = first->peer();  // the name may resolve to another address by now, and slowly
  Links links;
  links.least = std::move(welcome.least);
  const Check others = [&]() -> Status {
    return first->has_ended() ? Status(gone(internal_error("the connection ended"))) : Status();
  };
  for (int node = 0; node < place.node; ++node) {
    auto connection = connect_sums(place, welcome.sums[static_cast<size_t>(node)], welcome.session, deadline, others);
    if (!connection.ok()) {
      return unavailable("The " + node_name(node) + " cannot be reached for sums: " + connection.error().message);
    }
    links.sums.push_back(link_to(place, node, std::move(*connection)));
  }
  VOLLEY_RETURN_IF_ERROR(accept_later_nodes(place, listener.get(), welcome.session, deadline, others, links.sums));
  links.calls.push_back(std::move(first));
  return links;
}

}  // namespace

Result<Links> meet(const Place& place, const std::vector<Fact>& facts, const std::vector<int64_t>& numbers,
                   net::Deadline deadline) {
  VOLLEY_CHECK(place.nodes > 1 && place.node >= 0 && place.node < place.nodes && place.ranks % place.nodes == 0);
  VOLLEY_CHECK(facts.size() <= kMostFacts && numbers.size() <= kMostNumbers);
  return place.node == 0 ? meet_as_first(place, facts, numbers, deadline) : meet_first(place, facts, numbers, deadline);
}

}  // namespace volley::nodes
