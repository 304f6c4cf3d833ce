#include "engine/replica.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <system_error>

#include "comm/gone.h"
#include "device/cpu/thread_pool.h"
#include "device/fault.h"
#include "engine/round_setup.h"

namespace volley::engine {
namespace {

// For a node whose rank is gone to say why.
constexpr std::chrono::seconds kForTheCause(5);

// What another node says of it, where a rank is gone; empty: nothing is known.
std::string cause_of_loss(nodes::Leader* leader) {
  return leader == nullptr ? "" : leader->lost_within(kForTheCause);
}

}  // namespace

// In the order in which it is made; it goes in the opposite one.
struct Replica::Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<comm::Communicator> group;  // null with one rank
  LoadedModels models;
  int64_t weight_bytes = 0;
  std::unique_ptr<spec::Round> round;
};

Replica::Replica() = default;

// Replicas that still run would wait for it.
Replica::~Replica() {
  if (follower_ != nullptr) follower_->set_hooks({});
  if (lockstep_) lockstep_.with->abort(lockstep_.replica);
}

Result<std::unique_ptr<Replica>> Replica::create(const EngineOptions& options, const ResolvedModels& models,
                                                 const Progress& progress, const WrapDevice& wrap, nodes::Links links,
                                                 nodes::Follower* follower) {
  std::unique_ptr<Replica> replica(new Replica());
  replica->divides_by_expert_ = models.target.decoder.divides_by_expert();
  replica->all_ranks_ = models.ranks;
  replica->lockstep_ = models.lockstep;
  comm::RowExchange* const exchange =
      models.lockstep ? &models.lockstep.with->exchange(models.lockstep.replica) : nullptr;
  const int ranks = models.local_ranks(), first = models.first_rank();
  VOLLEY_CHECK_EQ(std::ssize(links.sums), models.nodes - 1);
  for (int rank = 0; rank < ranks; ++rank) replica->ranks_.push_back(std::make_unique<Rank>());
  if (models.nodes > 1 && models.node == 0) {
    replica->leader_ = std::make_unique<nodes::Leader>(std::move(links.calls));
    replica->masks_ = std::make_unique<spec::MaskExchange>(
        [leader = replica->leader_.get()](std::span<const uint32_t> words) { leader->masks(words); });
  } else if (models.nodes == 1 && follower != nullptr) {
    replica->masks_ = spec::MaskExchange::elsewhere([follower](std::span<const std::span<const TokenId>> drafted) {
      nodes::MaskQuestion question;
      for (const auto& tokens : drafted) question.drafted.emplace_back(tokens.begin(), tokens.end());
      if (const Status asked = follower->reply(question); !asked.ok()) throw DeviceFault(asked.error().message);
    });
  } else if (models.ranks > 1) {
    replica->masks_ = std::make_unique<spec::MaskExchange>();
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
  // Ranks may wait for those of other nodes from here on.
  replica->watch_processes({});
  if (follower != nullptr) {
    replica->follower_ = follower;
    follower->set_hooks({{}, [made = replica.get()] { made->abort(); }});
    if (auto lost = follower->lost_within({})) return std::move(*lost);
  }
  // Before anybody loads or records anything, all have what they exchange things in.
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
    rank.weight_bytes = rank.models.target->packed_bytes();
    if (rank.models.proposer) rank.weight_bytes += rank.models.proposer->packed_bytes();
    VOLLEY_ASSIGN(rank.round, make_round(*rank.device, options, models, rank.models, report, place));
    return {};
  };
  VOLLEY_RETURN_IF_ERROR(replica->start_ranks(make_place));
  VOLLEY_RETURN_IF_ERROR(replica->start_ranks(make));
  if (replica->leader_ != nullptr) {
    VOLLEY_ASSIGN(replica->others_, replica->leader_->ready());
    replica->others_experts_.resize(static_cast<size_t>(models.nodes) - 1);
  }
  return replica;
}

// A rank that is refused leaves nobody waiting for it; what the others throw then is not the cause.
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

const spec::Round& Replica::first() const {
  return *ranks_.front()->round;
}

// f(rank's round), in the order of the ranks.
template <typename F>
void Replica::each(const F& f) {
  if (ranks_.size() == 1) return f(*ranks_.front()->round);
  for (const auto& rank : ranks_) {
    rank->device->attach_thread();
    f(*rank->round);
  }
  ranks_.front()->device->attach_thread();
}

void Replica::watch_processes(std::function<void(const std::string&)> on_lost) {
  if (leader_ == nullptr) return;
  leader_->watch([this, told = std::move(on_lost)](const std::string& lost) {
    if (told) told(lost);  // first: what ranks say that are stopped is not the cause
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

int32_t Replica::vocab() const {
  return ranks_.front()->models.target->spec().vocab;
}

int Replica::threads() const {
  int threads = others_.threads;
  for (const auto& rank : ranks_) threads += rank->device->stream().threads();
  return threads;
}

int64_t Replica::weight_bytes() const {
  int64_t bytes = others_.weight_bytes;
  for (const auto& rank : ranks_) bytes += rank->weight_bytes;
  return bytes;
}

int64_t Replica::target_bytes() const {
  int64_t bytes = others_.target_bytes;
  for (const auto& rank : ranks_) bytes += rank->models.target->packed_bytes();
  return bytes;
}

int64_t Replica::state_bytes() const {
  int64_t bytes = others_.state_bytes;
  for (const auto& rank : ranks_) bytes += rank->models.kv->state_bytes();
  return bytes;
}

std::string Replica::device_name() const {
  return ranks_.front()->device->name();
}

void Replica::attach_thread() {
  ranks_.front()->device->attach_thread();
}

// Other nodes start it meanwhile.
Status Replica::start_slot(int32_t slot, const spec::SlotStart& start) {
  if (leader_ != nullptr) leader_->start_slot(slot, start);
  Status status;
  int started = 0;
  each([&](spec::Round& round) {
    if (status.ok()) status = round.start_slot(slot, start);
    started += status.ok() ? 1 : 0;
  });
  if (leader_ != nullptr) {
    const Status others = leader_->answers();
    if (status.ok()) status = others;
  }
  if (!status.ok()) {
    if (leader_ != nullptr) leader_->clear_slot(slot);
    each([&](spec::Round& round) {
      if (started-- > 0) round.clear_slot(slot);
    });
  }
  return status;
}

void Replica::clear_slot(int32_t slot) {
  if (leader_ != nullptr) leader_->clear_slot(slot);
  each([&](spec::Round& round) { round.clear_slot(slot); });
}

void Replica::set_page(int32_t slot, size_t group, int32_t index, PageId page) {
  if (leader_ != nullptr) leader_->set_page(slot, group, index, page);
  for (const auto& rank : ranks_) rank->round->set_page(slot, group, index, page);  // asks nothing of a device
}

void Replica::save_state(int32_t slot, PageId snapshot) {
  if (leader_ != nullptr) leader_->save_state(slot, snapshot);
  each([&](spec::Round& round) { round.save_state(slot, snapshot); });
}

void Replica::restore_state(PageId snapshot, int32_t slot) {
  if (leader_ != nullptr) leader_->restore_state(snapshot, slot);
  each([&](spec::Round& round) { round.restore_state(snapshot, slot); });
}

void Replica::copy_page(size_t group, PageId from, PageId to) {
  if (leader_ != nullptr) leader_->copy_page(group, from, to);
  each([&](spec::Round& round) { round.copy_page(group, from, to); });
}

Status Replica::reserve(std::span<const spec::RoundSegment> segments) {
  Status reserved;
  each([&](spec::Round& round) {
    if (reserved.ok()) reserved = round.reserve(segments);
  });
  return reserved;
}

Status Replica::reserve_on_all(std::span<const spec::RoundSegment> segments) {
  VOLLEY_RETURN_IF_ERROR(reserve(segments));
  if (leader_ == nullptr || !asks_.must_ask(segments)) return {};
  leader_->reserve(segments);
  VOLLEY_RETURN_IF_ERROR(leader_->answers());
  asks_.granted();
  return {};
}

// Memory first, on all ranks: a rank that has none must not leave the others waiting for its sums.
Status Replica::enqueue(std::span<const spec::RoundSegment> segments, const spec::VerifyBudget& budget) {
  if (threads_ == nullptr) {
    spec::Round& round = *ranks_.front()->round;
    if (lockstep_) {
      VOLLEY_RETURN_IF_ERROR(round.reserve(segments));  // what is refused is no pass
      lockstep_.with->begin(lockstep_.replica);
    }
    return round.enqueue(segments, budget);
  }
  VOLLEY_RETURN_IF_ERROR(reserve_on_all(segments));
  if (leader_ != nullptr) leader_->enqueue(segments, budget, depth() == 1);
  try {
    threads_->run([&](int index) {
      Rank& rank = *ranks_[static_cast<size_t>(index)];
      rank.device->attach_thread();
      const Status enqueued = rank.round->enqueue(segments, budget);
      VOLLEY_CHECK_MSG(enqueued.ok(), enqueued.error().message);
    });
  } catch (const comm::PeerLost&) {
    abort();  // the only rank here has others elsewhere
    // Where the peer is on another node, that one says more.
    const std::string cause = cause_of_loss(leader_.get());
    if (!cause.empty()) throw DeviceFault(cause);
    throw;
  } catch (...) {
    abort();
    throw;
  }
  return {};
}

void Replica::take_part() {
  lockstep_.with->begin(lockstep_.replica);
  ranks_.front()->round->take_part();
}

void Replica::settle() {
  ranks_.front()->round->settle();
}

spec::StepTimes Replica::wait(std::vector<spec::RoundResult>& results) {
  if (leader_ != nullptr && depth() > 1) leader_->wait();
  const spec::StepTimes times = ranks_.front()->round->wait(results);
  for (size_t i = 1; i < ranks_.size(); ++i) {
    ranks_[i]->round->wait(other_results_);
    for (size_t j = 0; j < results.size(); ++j) {
      const spec::RoundResult &one = results[j], &other = other_results_[j];
      if (one.tokens == other.tokens && one.ended == other.ended && one.finite == other.finite) continue;
      check();
      throw DeviceFault("Ranks 0 and " + std::to_string(i) + " of the tensor-parallel group chose different tokens.");
    }
  }
  check();
  if (leader_ != nullptr) compare_nodes(results);
  return times;
}

// Nothing is handed out that one of them has not come to.
void Replica::compare_nodes(std::span<const spec::RoundResult> results) {
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

// What a GPU computed after another one was gone means nothing, and looks like any result.
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

void Replica::discard(std::shared_ptr<spec::MaskSource> source) {
  ranks_.front()->round->discard(std::move(source));
}

}  // namespace volley::engine
