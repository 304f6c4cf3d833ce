#include "engine/run/replica.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <system_error>

#include "comm/gone.h"
#include "device/cpu/thread_pool.h"
#include "device/fault.h"
#include "engine/start/round_setup.h"

namespace volley::engine {
namespace {

// For a node whose rank is gone to say why.
constexpr std::chrono::seconds kForTheLeadersCause(5);

// The cause that another node reports for a lost rank; empty: unknown.
std::string cause_of_loss(nodes::Leader* leader) {
  return leader == nullptr ? "" : leader->lost_within(kForTheLeadersCause);
}

}  // namespace

// Members are in the order of their making, so that they are destroyed in the opposite order.
struct Replica::Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<comm::Communicator> group;  // null with one rank
  LoadedModels models;
  std::unique_ptr<decode::Round> round;
};

Replica::Replica(const ResolvedModels& models)
    : Executor(models), divides_by_expert_(models.target.decoder.divides_by_expert()) {
  lockstep_ = models.lockstep;
}

// Running replicas would wait for this one.
Replica::~Replica() {
  if (follower_ != nullptr) follower_->set_hooks({});
  if (lockstep_) lockstep_.with->abort(lockstep_.replica);
}

Result<std::unique_ptr<Replica>> Replica::create(const EngineOptions& options, const ResolvedModels& models,
                                                 const Progress& progress, const WrapDevice& wrap, nodes::Links links,
                                                 nodes::Follower* follower) {
  std::unique_ptr<Replica> replica(new Replica(models));
  comm::RowExchange* const exchange =
      models.lockstep ? &models.lockstep.with->exchange(models.lockstep.replica) : nullptr;
  const int ranks = models.local_ranks(), first = models.first_rank();
  VOLLEY_CHECK_EQ(std::ssize(links.sums), models.nodes - 1);
  for (int rank = 0; rank < ranks; ++rank) replica->ranks_.push_back(std::make_unique<Rank>());
  if (models.nodes > 1 && models.node == 0) {
    replica->leader_ = std::make_unique<nodes::Leader>(std::move(links.calls));
    replica->masks_ = std::make_unique<decode::MaskExchange>(
        [leader = replica->leader_.get()](std::span<const uint32_t> words) { leader->masks(words); });
  } else if (models.nodes == 1 && follower != nullptr) {
    replica->masks_ = decode::MaskExchange::elsewhere([follower](std::span<const std::span<const TokenId>> drafted) {
      nodes::MaskQuestion question;
      for (const auto& tokens : drafted) question.drafted.emplace_back(tokens.begin(), tokens.end());
      if (const Status asked = follower->reply(question); !asked.ok()) throw DeviceFault(asked.error().message);
    });
  } else if (models.ranks > 1) {
    replica->masks_ = std::make_unique<decode::MaskExchange>();
  }
  if (models.ranks > 1) {
    comm::Group group;
    if (models.nodes > 1) {
      VOLLEY_ASSIGN(group, comm::make_group_of_nodes(models.device.kind, models.ranks, first, ranks,
                                                     models.device.ordinal, std::move(links.sums)));
    } else {
      VOLLEY_ASSIGN(group, comm::make_group(models.device.kind, ranks, models.device.ordinal));
    }
    for (int rank = 0; rank < ranks; ++rank) replica->ranks_[rank]->group = std::move(group[rank]);
    try {
      replica->threads_ = std::make_unique<RankThreads>(ranks, [made = replica.get()](int rank) { made->abort(rank); });
    } catch (const std::system_error&) {
      return resource_exhausted("The system does not give this process " + std::to_string(ranks) +
                                " threads, one for each rank: lower --tensor-parallel-size.");
    }
  }
  // From here on ranks may wait for ranks of other nodes.
  replica->watch_processes({});
  if (follower != nullptr) {
    replica->follower_ = follower;
    follower->set_hooks({{}, [made = replica.get()] { made->abort(); }});
    if (auto lost = follower->lost_within({})) return std::move(*lost);
  }
  // All ranks allocate their exchange buffers before any of them loads or records.
  const auto make_place = [&](int index) -> Status {
    Rank& rank = *replica->ranks_[static_cast<size_t>(index)];
    VOLLEY_ASSIGN(rank.device,
                  make_device(device_of_rank(models.device, index), threads_of_rank(options.threads, index, ranks)));
    if (wrap) rank.device = wrap(std::move(rank.device), index);
    if (exchange != nullptr) VOLLEY_RETURN_IF_ERROR(exchange->prepare(*rank.device));
    return rank.group == nullptr ? Status() : rank.group->prepare(*rank.device);
  };
  const auto make = [&](int index) -> Status {
    Rank& rank = *replica->ranks_[static_cast<size_t>(index)];
    const Progress& report = index == 0 ? progress : Progress();
    const RankPlace place = {first + index, rank.group.get(), replica->masks_.get(), exchange};
    VOLLEY_ASSIGN(rank.models, load_models(*rank.device, models, options.draft_window, report, place));
    VOLLEY_ASSIGN(rank.round, make_round(*rank.device, options, models, rank.models, report, place));
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(replica->start_ranks(make_place));
  VOLLEY_RETURN_IF_ERROR(replica->start_ranks(make));
  nodes::Ready& ready = replica->ready_;
  if (replica->leader_ != nullptr) {
    VOLLEY_ASSIGN(ready, replica->leader_->ready());
    replica->others_experts_.resize(static_cast<size_t>(models.nodes) - 1);
  }
  for (const auto& rank : replica->ranks_) {
    ready.threads += rank->device->stream().threads();
    ready.weight_bytes += rank->models.weight_bytes;
    ready.target_bytes += rank->models.target->packed_bytes();
    ready.state_bytes += rank->models.kv->state_bytes();
  }
  ready.device = replica->ranks_.front()->device->name();
  ready.traits = replica->traits_ = replica->first().traits();
  return replica;
}

// A refused rank wakes the ranks that wait for it, so their exceptions are not the cause.
Status Replica::start_ranks(const std::function<Status(int)>& f) {
  if (threads_ == nullptr) return f(0);
  std::vector<Status> statuses(ranks_.size());
  const auto refusal = [&]() -> Status {
    for (const Status& status : statuses) VOLLEY_RETURN_IF_ERROR(status);
    return {};
  };
  try {
    threads_->run([&](int rank) {
      Status& status = statuses[static_cast<size_t>(rank)];
      status = f(rank);
      if (!status.ok()) abort(rank);
    });
  } catch (const comm::PeerLost&) {
    VOLLEY_RETURN_IF_ERROR(refusal());
    std::string cause = cause_of_loss(leader_.get());
    if (!cause.empty()) return Error{ErrorCode::kUnavailable, std::move(cause)};
    throw;
  }
  return refusal();
}

const decode::Round& Replica::first() const {
  return *ranks_.front()->round;
}

void Replica::watch_processes(std::function<void(const std::string&)> on_lost) {
  if (leader_ == nullptr) return;
  leader_->watch([this, told = std::move(on_lost)](const std::string& lost) {
    if (told) told(lost);  // comes first, because stopped ranks do not know the cause
    abort();
  });
}

void Replica::end_processes() {
  if (leader_ != nullptr) leader_->end();
}

void Replica::publish_masks(std::vector<uint32_t> words) {
  masks_->publish_kept(std::move(words));
}

void Replica::abort() {
  abort(0);
}

void Replica::abort(int rank) {
  masks_->stop();
  ranks_[static_cast<size_t>(rank)]->group->abort();
}

void Replica::attach_thread() {
  ranks_.front()->device->attach_thread();
}

// Other nodes run the command at the same time.
decode::Answer Replica::perform(const decode::Command& command) {
  if (const auto* step = std::get_if<decode::Enqueue>(&command)) return enqueue_step(*step);
  if (std::holds_alternative<decode::Wait>(command)) return take_results();
  // The first rank alone has the tower.
  if (std::holds_alternative<decode::See>(command) || std::holds_alternative<decode::TakeSeen>(command)) {
    return ranks_.front()->round->perform(command);
  }
  if (std::holds_alternative<decode::TakePart>(command)) lockstep_.with->begin(lockstep_.replica);
  const bool asks = leader_ != nullptr && decode::is_answered(command);
  if (leader_ != nullptr) leader_->tell(command);
  if (asks) leader_->flush();
  decode::Answer answer = perform_here(command);
  if (asks) answer = leader_->answers(std::move(answer));
  const auto* started = std::get_if<decode::StartSlot>(&command);
  if (started != nullptr && decode::is_refusal(answer)) execute(decode::ClearSlot{started->slot});
  return answer;
}

// Runs the command on this node's ranks, up to the first that refuses.
decode::Answer Replica::perform_here(const decode::Command& command) {
  const bool attaches = ranks_.size() > 1 && !std::holds_alternative<decode::SetPage>(command);
  decode::Answer answer;
  for (const auto& rank : ranks_) {
    if (attaches) rank->device->attach_thread();
    decode::Answer one = rank->round->perform(command);
    if (rank == ranks_.front() || decode::is_refusal(one)) answer = std::move(one);
    if (decode::is_refusal(answer)) break;
  }
  if (attaches) attach_thread();
  return answer;
}

// Reserves memory on all ranks first: a rank without memory must not leave the others waiting for its sums, and a
// refused step is no pass.
Status Replica::enqueue_step(const decode::Enqueue& step) {
  VOLLEY_RETURN_IF_ERROR(reserve(step.segments));
  if (lockstep_) lockstep_.with->begin(lockstep_.replica);
  if (threads_ == nullptr) return ranks_.front()->round->enqueue(step.segments, step.budget);
  if (leader_ != nullptr) {
    leader_->tell(step);
    if (depth() == 1) leader_->tell(decode::Wait{});
    leader_->flush();
  }
  try {
    threads_->run([&](int index) {
      Rank& rank = *ranks_[static_cast<size_t>(index)];
      rank.device->attach_thread();
      const Status enqueued = rank.round->enqueue(step.segments, step.budget);
      VOLLEY_CHECK_MSG(enqueued.ok(), enqueued.error().message);
    });
  } catch (const comm::PeerLost&) {
    abort();  // this only rank has peers on other nodes
    // If the peer is on another node, that node knows the cause.
    const std::string cause = cause_of_loss(leader_.get());
    if (!cause.empty()) throw DeviceFault(cause);
    throw;
  } catch (...) {
    abort();
    throw;
  }
  return {};
}

decode::StepResults Replica::take_results() {
  if (leader_ != nullptr && depth() > 1) {
    leader_->tell(decode::Wait{});
    leader_->flush();
  }
  decode::StepResults step = ranks_.front()->round->execute(decode::Wait{});
  for (size_t i = 1; i < ranks_.size(); ++i) {
    const decode::StepResults others = ranks_[i]->round->execute(decode::Wait{});
    for (size_t j = 0; j < step.results.size(); ++j) {
      const decode::RoundResult &one = step.results[j], &other = others.results[j];
      if (one.tokens == other.tokens && one.ended == other.ended && one.finite == other.finite) continue;
      check();
      throw DeviceFault("Ranks 0 and " + std::to_string(i) + " of the tensor-parallel group chose different tokens.");
    }
  }
  check();
  if (leader_ != nullptr) compare_nodes(step.results);
  step.experts_touched = experts_touched();
  return step;
}

// Results are handed out only if all nodes have the same.
void Replica::compare_nodes(std::span<const decode::RoundResult> results) {
  const std::vector<nodes::Report> reports = leader_->reports();
  for (size_t i = 0; i < reports.size(); ++i) {
    if (reports[i].digest != nodes::digest_of(results)) {
      throw DeviceFault("Nodes 0 and " + std::to_string(i + 1) +
                        " of the tensor-parallel group chose different tokens.");
    }
    others_experts_[i] = reports[i].experts_touched;
  }
}

int64_t Replica::experts_touched() const {
  if (!divides_by_expert_) return first().experts_touched();
  int64_t sum = 0;
  for (const auto& rank : ranks_) sum += rank->round->experts_touched();
  for (const int64_t others : others_experts_) sum += others;
  return sum;
}

// After another GPU is lost, this one's results are wrong and look like any others.
void Replica::check() const {
  if (lockstep_) lockstep_.with->exchange(lockstep_.replica).check();
  if (threads_ == nullptr) return;
  try {
    ranks_.front()->group->check();
  } catch (const comm::PeerLost&) {
    const std::string cause = cause_of_loss(leader_.get());
    if (!cause.empty()) throw DeviceFault(cause);
    throw;
  }
}

void Replica::discard(std::shared_ptr<decode::MaskSource> source) {
  ranks_.front()->round->discard(std::move(source));
}

}  // namespace volley::engine
