#include "kv/prefix_tree.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "kv/page_hash.h"

namespace volley::kv {
namespace {

struct KeysLess {
  using is_transparent = void;
  bool operator()(std::span<const CacheKey> a, std::span<const CacheKey> b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }
};

}  // namespace

// A run of whole pages. All of them were last used by the same operation: match() and insert() split a run where they
// leave it, so the unused pages keep their age.
struct PrefixTree::Node {
  using Children = std::map<std::vector<CacheKey>, std::unique_ptr<Node>, KeysLess>;  // by the first page's keys

  uint64_t number = 0;
  Node* parent = nullptr;                  // null in a root
  Children::iterator self;                 // this node's place in the parent's children
  const std::string* space = nullptr;      // a root's namespace; null elsewhere
  std::vector<CacheKey> keys;              // empty in a root
  std::vector<std::vector<PageId>> pages;  // by group, each as long as the run; kNoPage where a window lacks the page
  std::vector<uint64_t> hashes;            // hashes of the run's pages for events; empty without events, and for tails
  uint64_t last_used = 0;
  Children children;

  Node(uint64_t number, size_t groups) : number(number), pages(groups) {}
  size_t size() const { return pages[0].size(); }
  bool is_root() const { return parent == nullptr; }
  bool is_leaf() const { return children.empty() && !is_root(); }
  Node& adopt(std::unique_ptr<Node> child, size_t page_size) {
    Node& node = *child;
    node.parent = this;
    const auto length = static_cast<ptrdiff_t>(std::min(page_size, node.keys.size()));
    std::vector<CacheKey> key(node.keys.begin(), node.keys.begin() + length);
    const auto [place, added] = children.emplace(std::move(key), std::move(child));
    VOLLEY_CHECK(added);
    node.self = place;
    return node;
  }
};

PrefixTree::PrefixTree(std::span<PagePool> pools, std::span<const Group> groups, int32_t page_size, bool events)
    : pools_(pools),
      groups_(groups),
      page_size_(page_size),
      events_(events),
      held_(groups.size()),
      windowed_(groups.size()) {
  VOLLEY_CHECK_GT(page_size, 0);
  VOLLEY_CHECK(!groups.empty() && groups[0].life == Life::kWhole);
  VOLLEY_CHECK_EQ(pools.size(), groups.size());
}

PrefixTree::~PrefixTree() {
  while (!leaves_.empty()) {
    Node& leaf = *leaves_.begin()->second;
    unlist_windows(leaf);
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (PageId& page : leaf.pages[group]) let_go(group, page);
    }
    remove_leaf(leaf);
  }
}

// Where the usable prefix ends: whole pages, and a tail after them.
struct PrefixTree::Usable {
  size_t pages = 0, tokens = 0;
  Node* tail = nullptr;
  std::vector<size_t> from = {};  // by window: it has pages [from, pages)
};

PrefixTree::Match PrefixTree::match(const std::string& space, std::span<const CacheKey> keys) {
  Match found;
  std::vector<Node*> path;
  Usable end;
  const auto root = roots_.find(space);
  if (root != roots_.end()) {
    path = descend(*root->second, keys);
    path.insert(path.begin(), root->second.get());
    end = usable(path, keys);
  }
  for (const Node* node : path) found.pages_found += node->size();
  found.tokens = end.tokens;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const bool states = groups_[group].life == Life::kState;
    auto begin = std::min(
        end.pages, static_cast<size_t>(first_page(groups_[group], static_cast<int64_t>(end.tokens), page_size_)));
    const bool no_tail = end.tail != nullptr && end.tail->pages[group][0] == kNoPage;
    if (!groups_[group].required && end.tokens > 0 && (no_tail || end.from[group] > begin)) {
      begin = no_tail ? end.pages : end.from[group];
      found.optional_from = std::max(found.optional_from, no_tail ? end.tokens : page_tokens(begin));
    }
    std::vector<PageId> pages;
    PageId snapshot = kNoPage;
    size_t at = 0;
    for (const Node* node : path) {
      for (size_t i = 0; i < node->size(); ++i, ++at) {
        if (states && at + 1 == end.pages && end.tail == nullptr) snapshot = node->pages[group][i];
        if (!states && at >= begin && at < end.pages) pages.push_back(node->pages[group][i]);
      }
    }
    for (const PageId page : pages) pools_[group].retain(page);
    found.lists.emplace_back(pools_[group], states ? 0 : begin, std::move(pages));
    if (no_tail) found.lists.back().set_complete_from(end.pages + 1);  // this page lacks the tail's positions
    if (end.tail != nullptr) snapshot = end.tail->pages[group][0];
    if (!has_states() || end.tokens == 0) continue;
    std::vector<PageId> last;
    if (snapshot != kNoPage) last.push_back(snapshot);
    for (const PageId page : last) pools_[group].retain(page);
    found.tail.emplace_back(pools_[group], end.pages, std::move(last));
  }
  ++clock_;  // the path may end in another leaf
  if (end.tail != nullptr) touch(*end.tail);
  return found;
}

// The longest tail after `node` that `rest` begins with.
PrefixTree::Node* PrefixTree::tail_of(const Node& node, std::span<const CacheKey> rest) const {
  for (size_t n = std::min(rest.size(), page_tokens(1) - 1); n > 0; --n) {
    const auto child = node.children.find(rest.first(n));
    if (child != node.children.end()) return child->second.get();
  }
  return nullptr;
}

// The longest usable prefix along a path from the root.
PrefixTree::Usable PrefixTree::usable(std::span<Node* const> path, std::span<const CacheKey> keys) const {
  Usable best;
  const size_t windows = groups_.size() - (has_states() ? 1 : 0);
  std::vector<size_t> from(windows);  // the group has pages [from, at)
  const auto windows_reach = [&](size_t end) {
    for (size_t group = 1; group < windows; ++group) {
      if (!groups_[group].required) continue;
      if (first_page(groups_[group], static_cast<int64_t>(end), page_size_) < static_cast<int64_t>(from[group]))
        return false;
    }
    return true;
  };
  size_t at = 0;
  for (const Node* node : path) {
    for (size_t i = 0; i < node->size(); ++i) {
      ++at;
      for (size_t group = 1; group < windows; ++group) {
        if (node->pages[group][i] == kNoPage) from[group] = at;
      }
      if (has_states() && node->pages.back()[i] == kNoPage) continue;
      if (windows_reach(page_tokens(at))) best = {at, page_tokens(at), nullptr, from};
    }
    if (!has_states()) continue;
    Node* tail = tail_of(*node, keys.subspan(page_tokens(at)));
    if (tail == nullptr || !windows_reach(page_tokens(at) + tail->keys.size())) continue;
    const auto lacks = [&](size_t group) { return groups_[group].required && tail->pages[group][0] == kNoPage; };
    if (std::ranges::any_of(std::views::iota(size_t{0}, groups_.size()), lacks)) continue;
    best = {at, page_tokens(at) + tail->keys.size(), tail, from};
  }
  return best;
}

void PrefixTree::insert(const std::string& space, std::span<const CacheKey> keys, std::span<PageList> lists) {
  const size_t pages = keys.size() / page_tokens(1);
  const std::span<const CacheKey> whole = keys.first(page_tokens(pages)), rest = keys.subspan(whole.size());
  VOLLEY_CHECK(rest.empty() || has_states());
  VOLLEY_CHECK(lists[0].begin() == 0 && whole.size() <= page_tokens(lists[0].end()));
  const bool tail = !rest.empty() && lists.back().has(pages);
  if (whole.empty() && !tail) return;
  const auto root = roots_.try_emplace(space).first;
  if (root->second == nullptr) {
    root->second = std::make_unique<Node>(nodes_++, groups_.size());
    root->second->space = &root->first;
  }
  size_t found = 0;
  Node* end = root->second.get();
  for (Node* node : descend(*root->second, whole)) {
    merge(*node, lists, found);
    found += node->size();
    end = node;
  }
  end = append(*end, whole.subspan(page_tokens(found)), lists, found);
  if (events_) note_stored(space, *end);
  if (tail) insert_tail(*end, rest, lists, pages);
}

// Adds a tail after a node at which the whole pages end.
void PrefixTree::insert_tail(Node& end, std::span<const CacheKey> keys, std::span<PageList> lists, size_t page) {
  const auto there = end.children.find(keys);
  if (there != end.children.end()) {
    touch(*there->second);
    return merge(*there->second, lists, page);
  }
  if (end.is_leaf()) leaves_.erase(end.last_used);
  auto made = std::make_unique<Node>(nodes_++, groups_.size());
  made->keys.assign(keys.begin(), keys.end());
  Node& node = end.adopt(std::move(made), page_tokens(1));
  for (size_t group = 0; group < groups_.size(); ++group) {
    const PageId own = lists[group].offers(page) ? lists[group][page] : kNoPage;
    node.pages[group].push_back(own);
    if (own != kNoPage) hold(group, own);
  }
  touch(node);
}

// The node's run becomes pages `begin` … of the lists: the lists take the node's pages, and where the node lacks a
// window page it takes theirs.
void PrefixTree::merge(Node& node, std::span<PageList> lists, size_t begin) {
  unlist_windows(node);
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (size_t i = 0; i < node.size(); ++i) {
      PageList& list = lists[group];
      PageId& page = node.pages[group][i];
      if (!list.has(begin + i)) continue;
      if (page == kNoPage && list.offers(begin + i)) hold(group, page = list[begin + i]);
      if (page != kNoPage) list.replace(begin + i, page);
    }
  }
  list_windows(node);
}

void PrefixTree::hold(size_t group, PageId page) {
  pools_[group].retain_for_cache(page);
  ++held_[group];
}

void PrefixTree::let_go(size_t group, PageId& page) {
  if (page == kNoPage) return;
  pools_[group].release_from_cache(page);
  page = kNoPage;
  --held_[group];
}

int64_t PrefixTree::evict(size_t group, int64_t pages) {
  if (group == 0) return evict_ends(pages);
  const int64_t freed = evict_windows(group, kBehind, pages);
  return freed + evict_windows(group, kAtEnd, pages - freed);
}

int64_t PrefixTree::evict_ends(int64_t pages) {
  int64_t freed = 0;
  for (auto oldest = leaves_.begin(); oldest != leaves_.end() && freed < pages;) {
    const uint64_t age = oldest->first;
    Node& leaf = *oldest->second;
    if (leaf.size() > 0 && pools_[0].references(leaf.pages[0].back()) > 1) {  // in use: no page can be evicted
      ++oldest;
      continue;
    }
    unlist_windows(leaf);
    while (freed < pages && leaf.size() > 0 && pools_[0].references(leaf.pages[0].back()) == 1) {
      for (size_t group = 0; group < groups_.size(); ++group) {
        let_go(group, leaf.pages[group].back());
        leaf.pages[group].pop_back();
      }
      if (events_) note_removed(leaf);
      ++freed;
    }
    leaf.keys.resize(std::min(leaf.keys.size(), page_tokens(leaf.size())));  // a tail has fewer keys
    if (leaf.size() == 0) {
      const uint64_t parents = leaf.parent->is_root() ? age : std::min(age, leaf.parent->last_used);
      remove_leaf(leaf);
      oldest = leaves_.lower_bound(parents);  // the parent may have become a leaf
    } else {
      list_windows(leaf);
      ++oldest;
    }
  }
  return freed;
}

int64_t PrefixTree::evict_windows(size_t group, Place place, int64_t pages) {
  int64_t freed = 0;
  auto& nodes = windowed_[group][place];
  for (auto oldest = nodes.begin(); oldest != nodes.end() && freed < pages;) {
    Node& node = *oldest->second;
    ++oldest;  // the node may leave the list
    unlist_windows(node);
    const size_t behind = node.size() - pages_at_end(group, node);
    for (size_t i = place == kBehind ? 0 : behind; i < (place == kBehind ? behind : node.size()); ++i) {
      PageId& page = node.pages[group][i];
      if (freed == pages) break;
      if (page == kNoPage || pools_[group].references(page) > 1) continue;
      let_go(group, page);
      ++freed;
    }
    if (groups_[group].life == Life::kState && node.keys.size() < page_tokens(1) && node.pages[group][0] == kNoPage) {
      drop_tail(node);
    } else {
      list_windows(node);
    }
  }
  return freed;
}

// Drops the tail: without its snapshot it cannot be used. REQUIRES: the tail is in no list of windows.
void PrefixTree::drop_tail(Node& tail) {
  for (size_t group = 0; group < groups_.size(); ++group) let_go(group, tail.pages[group][0]);
  remove_leaf(tail);
}

// How many of the node's window pages a prefix needs that ends with the node or shortly after it.
size_t PrefixTree::pages_at_end(size_t group, const Node& node) const {
  if (groups_[group].life == Life::kState) return 0;  // the oldest is evicted first, wherever it lies
  return std::min(node.size(), static_cast<size_t>(pages_for(groups_[group].window - 1, page_size_)));
}

void PrefixTree::list_windows(Node& node) {
  for (size_t group = 1; group < groups_.size(); ++group) {
    const std::vector<PageId>& pages = node.pages[group];
    const auto at_end = pages.end() - static_cast<ptrdiff_t>(pages_at_end(group, node));
    const auto held = [](PageId page) { return page != kNoPage; };
    const Age age = {node.last_used, node.number};
    if (std::any_of(pages.begin(), at_end, held)) windowed_[group][kBehind].emplace(age, &node);
    if (std::any_of(at_end, pages.end(), held)) windowed_[group][kAtEnd].emplace(age, &node);
  }
}

void PrefixTree::unlist_windows(Node& node) {
  for (size_t group = 1; group < groups_.size(); ++group) {
    for (auto& nodes : windowed_[group]) nodes.erase({node.last_used, node.number});
  }
}

// Follows `keys` from `root` through whole pages of the tree and marks them as just used. Returns the nodes, whose
// runs together are the prefix.
std::vector<PrefixTree::Node*> PrefixTree::descend(Node& root, std::span<const CacheKey> keys) {
  ++clock_;
  std::vector<Node*> path;
  Node* node = &root;
  const size_t page_size = page_tokens(1);
  while (keys.size() >= page_size) {
    const auto child = node->children.find(keys.first(page_size));
    if (child == node->children.end()) break;
    node = child->second.get();
    const size_t length = std::min(keys.size(), node->keys.size());
    const auto end = node->keys.begin() + static_cast<ptrdiff_t>(length);
    const auto differs = std::mismatch(node->keys.begin(), end, keys.begin()).first;
    const size_t shared = static_cast<size_t>(differs - node->keys.begin()) / page_size;
    if (shared < node->size()) split(*node, shared);
    touch(*node);
    path.push_back(node);
    keys = keys.subspan(page_tokens(shared));
  }
  return path;
}

void PrefixTree::touch(Node& node) {
  if (node.is_leaf()) {
    leaves_.erase(node.last_used);
    VOLLEY_CHECK(leaves_.emplace(clock_, &node).second);
  }
  unlist_windows(node);
  node.last_used = clock_;
  list_windows(node);
}

// Keeps the first `pages` pages in `node` and moves the others, with its children, into a new node below it.
void PrefixTree::split(Node& node, size_t pages) {
  unlist_windows(node);
  auto tail = std::make_unique<Node>(nodes_++, groups_.size());
  tail->keys.assign(node.keys.begin() + static_cast<ptrdiff_t>(page_tokens(pages)), node.keys.end());
  tail->last_used = node.last_used;
  tail->children.swap(node.children);  // keeps the children's iterators valid
  for (auto& [key, child] : tail->children) child->parent = tail.get();
  node.keys.resize(page_tokens(pages));
  if (events_) {
    tail->hashes.assign(node.hashes.begin() + static_cast<ptrdiff_t>(pages), node.hashes.end());
    node.hashes.resize(pages);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<PageId>& run = node.pages[group];
    tail->pages[group].assign(run.begin() + static_cast<ptrdiff_t>(pages), run.end());
    run.resize(pages);
  }
  Node& lower = node.adopt(std::move(tail), page_tokens(1));
  if (lower.is_leaf()) leaves_[lower.last_used] = &lower;
  list_windows(node);
  list_windows(lower);
}

// Adds a run after the node at which descend() stopped: pages `begin` … of the lists. Returns the last node of the run.
PrefixTree::Node* PrefixTree::append(Node& end, std::span<const CacheKey> keys, std::span<const PageList> lists,
                                     size_t begin) {
  if (keys.empty()) return &end;
  Node* node = &end;
  if (!end.is_leaf()) {  // a leaf is extended: a conversation of many turns stays one run
    auto child = std::make_unique<Node>(nodes_++, groups_.size());
    child->keys.assign(keys.begin(), keys.end());
    node = &end.adopt(std::move(child), page_tokens(1));
    touch(*node);
  } else {
    node->keys.insert(node->keys.end(), keys.begin(), keys.end());
  }
  unlist_windows(*node);
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (size_t at = begin; at < begin + keys.size() / page_tokens(1); ++at) {
      const PageId page = lists[group].offers(at) ? lists[group][at] : kNoPage;
      node->pages[group].push_back(page);
      if (page != kNoPage) hold(group, page);
    }
  }
  list_windows(*node);
  return node;
}

void PrefixTree::drop() {
  for (size_t group = 0; group < groups_.size(); ++group) evict(group, held_[group]);
  if (!events_ || !roots_.empty()) return;
  news_.clear();  // whatever came before
  news_.push_back({.kind = CacheEvent::Kind::kCleared, .tokens = {}});
}

std::vector<CacheEvent> PrefixTree::take_events() {
  return std::exchange(news_, {});
}

// Hashes the pages at the node's end that have no hash yet: they are new.
void PrefixTree::note_stored(const std::string& space, Node& node) {
  if (node.is_root()) return;  // it has no pages, at most a tail
  const bool first = node.parent->is_root();
  uint64_t parent = !node.hashes.empty() ? node.hashes.back() : first ? 0 : node.parent->hashes.back();
  while (node.hashes.size() < node.size()) {
    const auto keys = std::span(node.keys).subspan(page_tokens(node.hashes.size()), page_tokens(1));
    const uint64_t hash = page_hash(parent == 0 ? root_hash(space) : parent, keys);
    news_.push_back({.kind = CacheEvent::Kind::kStored,
                     .hash = hash,
                     .parent = parent,
                     .tokens = {keys.begin(), keys.end()},
                     .page_size = page_size_,
                     .cache_namespace = space});
    node.hashes.push_back(parent = hash);
  }
}

// Reports that the leaf's last page was evicted.
void PrefixTree::note_removed(Node& leaf) {
  if (leaf.hashes.empty()) return;  // a tail
  news_.push_back({.kind = CacheEvent::Kind::kRemoved, .hash = leaf.hashes.back(), .tokens = {}});
  leaf.hashes.pop_back();
}

std::vector<PrefixTree::Prefix> PrefixTree::prefixes() const {
  std::vector<Prefix> found;
  std::vector<std::pair<const Node*, Prefix>> open;
  for (const auto& [space, root] : roots_) open.push_back({root.get(), {space, {}}});
  while (!open.empty()) {
    const auto [node, prefix] = std::move(open.back());
    open.pop_back();
    bool longest = !prefix.tokens.empty();
    for (const auto& [key, child] : node->children) {
      if (child->keys.size() < page_tokens(1)) continue;  // a tail
      longest = false;
      open.push_back({child.get(), prefix});
      std::ranges::copy(child->keys, std::back_inserter(open.back().second.tokens));
    }
    if (longest) found.push_back(prefix);
  }
  return found;
}

// Unlinks a leaf whose pages are gone, and a namespace that has no pages left.
void PrefixTree::remove_leaf(Node& leaf) {
  Node& parent = *leaf.parent;
  leaves_.erase(leaf.last_used);
  parent.children.erase(leaf.self);
  if (!parent.children.empty()) return;
  if (parent.is_root()) {
    roots_.erase(roots_.find(*parent.space));
  } else {
    VOLLEY_CHECK(leaves_.emplace(parent.last_used, &parent).second);
  }
}

}  // namespace volley::kv
