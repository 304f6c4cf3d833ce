#include "serve/responses/response_store.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

namespace volley::serve {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";

size_t total_bytes(const std::vector<ResponseItem>& items) {
  size_t bytes = 0;
  for (const ResponseItem& item : items) bytes += item.bytes();
  return bytes;
}

}  // namespace

// Frees turns one by one, because nested destructors of a long conversation would overflow the stack.
StoredTurn::~StoredTurn() {
  std::shared_ptr<const StoredTurn> last = std::move(previous_);
  while (last && last.use_count() == 1) {
    auto before = std::move(const_cast<StoredTurn&>(*last).previous_);  // this is the only owner
    last = std::move(before);
  }
}

void StoredTurn::for_each(const std::function<void(const std::vector<ResponseItem>&)>& read) const {
  std::vector<const StoredTurn*> chain;
  for (const StoredTurn* turn = this; turn; turn = turn->previous_.get()) chain.push_back(turn);
  for (auto turn = chain.rbegin(); turn != chain.rend(); ++turn) {
    read((*turn)->input_);
    read((*turn)->output_);
  }
}

ResponseStore::ResponseStore(size_t max_count, size_t max_bytes)
    : places_({.total = max_count, .share = FairSpace::kNoLimit}),
      bytes_(new SharedSpace({.total = max_count > 0 ? max_bytes : 0, .share = FairSpace::kNoLimit})) {}

void ResponseStore::drop(Order::iterator entry) {
  const auto tenant = tenants_.find(entry->place.tenant());
  by_id_.erase(entry->id);
  tenant->second.erase(entry);
  if (tenant->second.empty()) tenants_.erase(tenant);
}

// A running conversation's bytes do not go with its entry, so this may drop all of a tenant's entries and still fail.
bool ResponseStore::grow(SharedSpace& space, SharedSpace::Hold& hold, const std::string& tenant, size_t n) {
  const auto oldest = [&](const std::string& name) -> std::optional<uint64_t> {
    const auto found = tenants_.find(name);
    return found != tenants_.end() ? std::optional(found->second.back().used) : std::nullopt;
  };
  while (!hold.grow_to(tenant, hold.held() + n)) {
    const auto most = space.who_makes_room(tenant, n, oldest);
    if (!most) return false;
    drop(std::prev(tenants_.at(*most).end()));
  }
  return true;
}

std::shared_ptr<StoredTurn> ResponseStore::begin(std::string_view tenant, std::shared_ptr<const StoredTurn> previous,
                                                 std::vector<ResponseItem> input) {
  const std::string asking(tenant);
  const size_t bytes = sizeof(StoredTurn) + total_bytes(input);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<StoredTurn> turn(new StoredTurn(bytes_));
  if (!grow(*bytes_, turn->bytes_, asking, bytes)) return nullptr;
  turn->conversation_bytes_ = bytes + (previous ? previous->conversation_bytes() : 0);
  turn->previous_ = std::move(previous);
  turn->input_ = std::move(input);
  return turn;
}

void ResponseStore::finish(std::string_view tenant, const std::string& id, std::shared_ptr<StoredTurn> turn,
                           std::vector<ResponseItem> output, std::string json) {
  const std::string asking(tenant);
  const size_t items = total_bytes(output);
  const size_t bytes = items + json.size() + sizeof(Entry) + 2 * id.size();
  const std::lock_guard lock(mutex_);
  Entry entry{id, turn, ++uses_, SharedSpace::Hold(places_)};
  if (!grow(*bytes_, turn->bytes_, asking, bytes) || !grow(places_, entry.place, asking, 1)) return;
  turn->conversation_bytes_ += items;
  turn->output_ = std::move(output);
  turn->json_ = std::move(json);
  Order& order = tenants_[asking];
  order.push_front(std::move(entry));
  by_id_[id] = order.begin();
}

std::optional<ResponseStore::Order::iterator> ResponseStore::look_up(std::string_view tenant, const std::string& id) {
  const auto found = by_id_.find(id);
  return found != by_id_.end() && found->second->place.tenant() == tenant ? std::optional(found->second) : std::nullopt;
}

std::shared_ptr<const StoredTurn> ResponseStore::find(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (!entry) return nullptr;
  Order& order = tenants_.at((*entry)->place.tenant());
  (*entry)->used = ++uses_;
  order.splice(order.begin(), order, *entry);
  return (*entry)->turn;
}

// An item's id is its kind's prefix, its response's suffix, and a number, with "in" before it for input. A response may
// have much input, and a request many references.
std::optional<ResponseItem> ResponseStore::find_item(std::string_view tenant, const std::string& item_id) {
  const size_t begin = item_id.find('_'), end = item_id.rfind('_');
  if (begin == std::string::npos || end <= begin) return std::nullopt;
  const auto turn = find(tenant, std::string(kResponsePrefix) + item_id.substr(begin + 1, end - begin - 1));
  if (!turn) return std::nullopt;
  constexpr std::string_view kInput = "in";
  std::string_view number = std::string_view(item_id).substr(end + 1);
  if (number.starts_with(kInput)) {
    number.remove_prefix(kInput.size());
    size_t index = 0;
    const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || rest != number.data() + number.size() || index >= turn->input().size() ||
        turn->input()[index].id != item_id) {
      return std::nullopt;
    }
    return turn->input()[index];
  }
  const auto item = std::ranges::find(turn->output(), item_id, &ResponseItem::id);
  return item != turn->output().end() ? std::optional(*item) : std::nullopt;
}

bool ResponseStore::erase(std::string_view tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto entry = look_up(tenant, id);
  if (!entry) return false;
  drop(*entry);
  return true;
}

size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return by_id_.size();
}

size_t ResponseStore::bytes() const {
  return bytes_->all();
}

}  // namespace volley::serve
