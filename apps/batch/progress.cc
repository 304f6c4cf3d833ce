#include "apps/batch/progress.h"

#include <cmath>
#include <cstdio>

namespace volley::apps {
namespace {

constexpr std::chrono::seconds kNoteInterval{30};

}  // namespace

std::string describe_duration(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(seconds));
  char text[48];
  if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %02lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
  }
  return text;
}

BatchProgress::BatchProgress(Console* console, int64_t lines, int64_t done, int64_t failed)
    : console_(*console),
      lines_(lines),
      done_before_(done),
      done_(done),
      failed_(failed),
      begin_(Clock::now()),
      last_note_(begin_) {
  if (done > 0) {
    console_.note("Going on: " + std::to_string(done) + " of " + std::to_string(lines) + " lines have their result.");
  }
}

void BatchProgress::count_tokens(int64_t tokens) {
  tokens_ += tokens;
}

void BatchProgress::count(bool failed) {
  ++done_;
  failed_ += failed;
}

std::string BatchProgress::describe(int64_t running) const {
  std::string text = std::to_string(done_) + " of " + std::to_string(lines_) + " done";
  if (failed_ > 0) text += ", " + std::to_string(failed_) + " failed";
  text += ", " + std::to_string(running) + " running";
  const int64_t here = done_ - done_before_;
  if (here == 0) return text;
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  return text + ", " + describe_duration(elapsed * static_cast<double>(lines_ - done_) / static_cast<double>(here)) +
         " to go";
}

void BatchProgress::show(int64_t running) {
  if (console_.stderr_terminal()) {
    console_.progress(describe(running), static_cast<double>(done_) / static_cast<double>(lines_));
  } else if (Clock::now() - last_note_ >= kNoteInterval) {
    last_note_ = Clock::now();
    console_.note(describe(running));
  }
}

void BatchProgress::finish(const EngineStats& stats) {
  console_.clear_progress();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  char text[200];
  std::snprintf(text, sizeof text,
                "%lld of %lld lines have their result, %lld of them failed; %lld now, with %lld tokens in %.3g s",
                static_cast<long long>(done_), static_cast<long long>(lines_), static_cast<long long>(failed_),
                static_cast<long long>(done_ - done_before_), static_cast<long long>(tokens_), seconds);
  std::string line = text;
  if (stats.verify_steps > 0) {
    // A request's first token comes from its prompt, not from a verify step.
    const double decoded = static_cast<double>(stats.accepted_tokens + stats.verify_steps);
    std::snprintf(text, sizeof text, ", %.2f tokens a step", decoded / static_cast<double>(stats.verify_steps));
    line += text;
  }
  console_.note(line);
}

}  // namespace volley::apps
