#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/text.h"

namespace volley::text {

// Each stop string is one Knuth-Morris-Pratt automaton: a byte costs amortised constant time, and the longest `matched`
// over all of them is exactly what must be held back.
void StopMatcher::Stop::advance(char c) {
  while (matched > 0 && text[matched] != c) matched = borders[matched - 1];
  if (text[matched] == c) ++matched;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    VOLLEY_CHECK_MSG(!text.empty(), "a stop string must not be empty");
    Stop stop{std::move(text), {0}, 0};
    for (size_t i = 1, border = 0; i < stop.text.size(); ++i) {
      while (border > 0 && stop.text[i] != stop.text[border]) border = stop.borders[border - 1];
      if (stop.text[i] == stop.text[border]) ++border;
      stop.borders.push_back(border);
    }
    stops_.push_back(std::move(stop));
  }
}

StopMatcher::Output StopMatcher::push(std::string_view text, bool counts) {
  if (done_) return {};
  const size_t already_held = held_.size();
  held_ += text;
  for (size_t i = 0; i < text.size(); ++i) {
    const Stop* first = nullptr;
    for (Stop& stop : stops_) {
      stop.advance(text[i]);
      if (!stop.complete()) continue;
      if (!counts) {
        stop.matched = stop.borders.back();  // another may have begun within it
      } else if (first == nullptr || stop.text.size() > first->text.size()) {
        first = &stop;
      }
    }
    if (first != nullptr) {
      done_ = true;
      held_.resize(already_held + i + 1 - first->text.size());
      return {std::exchange(held_, {}), first->text};
    }
  }
  size_t hold = 0;
  for (const Stop& stop : stops_) hold = std::max(hold, stop.matched);
  Output output{held_.substr(0, held_.size() - hold), std::nullopt};
  held_.erase(0, held_.size() - hold);
  return output;
}

std::string StopMatcher::finish() {
  done_ = true;
  return std::exchange(held_, {});
}

}  // namespace volley::text
