#include "decode/mask_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <new>
#include <optional>
#include <thread>

namespace volley::decode {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForever{3'600'000};

// Writes into each row the number of tokens before it.
class Counting : public MaskSource {
 public:
  void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override {
    for (size_t row = 0; row <= drafted.size(); ++row) {
      std::fill_n(words + row * mask_words, mask_words, static_cast<uint32_t>(row));
    }
  }
  void give_up(Why why) override {
    given_up = true;
    reason = why;
  }

  bool given_up = false;
  std::optional<Why> reason;
};

// Waits until it is told to stop, and uses no CPU.
class Endless final : public Counting {
 public:
  explicit Endless(std::atomic<int>* destroyed) : destroyed_(destroyed) {}
  ~Endless() override { ++*destroyed_; }

  void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override {
    end_.get_future().wait();
    Counting::fill(drafted, words, mask_words);  // late: it writes into memory of its own
  }
  void give_up(Why why) override {
    Counting::give_up(why);
    if (ends_when_told) end_.set_value();
  }
  void end() { end_.set_value(); }

  bool ends_when_told = true;

 private:
  std::atomic<int>* destroyed_;
  std::promise<void> end_;
};

struct Step {
  std::vector<TokenId> drafted = {1, 2, 3};
  std::vector<uint32_t> words = std::vector<uint32_t>(4 * 2, 77);
  MaskThreads::Task task(std::shared_ptr<MaskSource> source) { return {std::move(source), drafted, words.data()}; }
};

const std::vector<uint32_t> kCounted = {0, 0, 1, 1, 2, 2, 3, 3};
const std::vector<uint32_t> kAll(8, ~0u);

TEST(MaskThreads, FillsTheWordsOfEveryTask) {
  MaskThreads threads(3, kForever);
  for (const size_t tasks : {1, 2, 40}) {
    std::vector<Step> steps(tasks);
    std::vector<MaskThreads::Task> list;
    for (Step& step : steps) list.push_back(step.task(std::make_shared<Counting>()));
    threads.fill(list, 2);
    for (const Step& step : steps) EXPECT_EQ(step.words, kCounted);
  }
}

// A late grammar costs its own request alone. The step goes on, and other requests' masks do not change.
TEST(MaskThreads, GivesUpWhoeverIsLateAlone) {
  std::atomic<int> destroyed = 0;
  MaskThreads threads(2, milliseconds(200));
  auto late = std::make_shared<Endless>(&destroyed);
  auto quick = std::make_shared<Counting>();
  Step late_step, quick_step;
  const MaskThreads::Task tasks[] = {late_step.task(late), quick_step.task(quick)};
  threads.fill(tasks, 2);
  EXPECT_TRUE(late->given_up);
  EXPECT_EQ(late_step.words, kAll);
  EXPECT_EQ(quick->given_up, quick_step.words == kAll);  // except on a machine that stood still for so long
}

// Computes until it is told to stop.
class Computing final : public Counting {
 public:
  void fill(std::span<const TokenId>, uint32_t*, int32_t) override {
    while (!stop_) {
    }
  }
  void give_up(Why why) override {
    Counting::give_up(why);
    stop_ = true;
  }

 private:
  std::atomic<bool> stop_{false};
};

// Only computing time makes a grammar late, so a busy machine is no reason to refuse it.
TEST(MaskThreads, WhoComputesIsLateAndWhoWaitsIsNot) {
  class Waiting final : public Counting {
   public:
    void fill(std::span<const TokenId> drafted, uint32_t* words, int32_t mask_words) override {
      std::this_thread::sleep_for(milliseconds(2200));
      Counting::fill(drafted, words, mask_words);
    }
  };
  MaskThreads threads(1, milliseconds(2000));
  auto waiting = std::make_shared<Waiting>();
  Step step;
  const MaskThreads::Task task = step.task(waiting);
  threads.fill({&task, 1}, 2);
  EXPECT_FALSE(waiting->given_up);
  EXPECT_EQ(step.words, kCounted);

  std::atomic<int> destroyed = 0;
  auto endless = std::make_shared<Endless>(&destroyed);
  MaskThreads quick(1, milliseconds(20));
  const MaskThreads::Task blocked = step.task(endless);
  quick.fill({&blocked, 1}, 2);
  EXPECT_EQ(endless->reason, MaskSource::Why::kBusy) << "but not without end";

  std::optional<MaskSource::Why> reason;
  // on a busy machine the source may get no processor
  for (int i = 0; i < 100 && reason != MaskSource::Why::kLate; ++i) {
    auto computing = std::make_shared<Computing>();
    const MaskThreads::Task late = step.task(computing);
    quick.fill({&late, 1}, 2);
    EXPECT_EQ(step.words, kAll);
    reason = computing->reason;
  }
  EXPECT_EQ(reason, MaskSource::Why::kLate);
}

TEST(MaskThreads, WhoWaitsBehindTheLateGetsAThread) {
  bool both = false;
  for (int i = 0; i < 100 && !both; ++i) {  // on a busy machine a source may get no processor
    MaskThreads threads(1, milliseconds(100));
    auto late = std::make_shared<Computing>();
    auto behind = std::make_shared<Counting>();
    late->last_time = std::chrono::nanoseconds(1);
    Step late_step, step;
    const MaskThreads::Task tasks[] = {late_step.task(late), step.task(behind)};
    threads.fill(tasks, 2);
    EXPECT_EQ(step.words, behind->given_up ? kAll : kCounted);
    both = late->reason == MaskSource::Why::kLate && !behind->given_up;
  }
  EXPECT_TRUE(both);
}

// Jobs that were left behind neither hold the threads of later steps nor write into their memory.
TEST(MaskThreads, GoesOnBesideWhatWasLeftBehind) {
  std::atomic<int> destroyed = 0;
  std::vector<std::shared_ptr<Endless>> stuck;
  {
    MaskThreads threads(1, milliseconds(50));
    for (int i = 0; i < 3; ++i) {
      stuck.push_back(std::make_shared<Endless>(&destroyed));
      stuck.back()->ends_when_told = false;
      Step step;
      const MaskThreads::Task task = step.task(stuck.back());
      threads.fill({&task, 1}, 2);
      EXPECT_TRUE(stuck.back()->given_up);
      EXPECT_EQ(step.words, kAll);
    }
    auto quick = std::make_shared<Counting>();
    Step step;
    const MaskThreads::Task task = step.task(quick);
    threads.fill({&task, 1}, 2);
    EXPECT_EQ(step.words, quick->given_up ? kAll : kCounted);
    for (const auto& source : stuck) source->end();
  }
  stuck.clear();
  EXPECT_EQ(destroyed, 3);
}

TEST(MaskThreads, DropsWhatIsDiscarded) {
  std::atomic<int> destroyed = 0;
  {
    MaskThreads threads(2, kForever);
    threads.discard(std::make_shared<Endless>(&destroyed));
  }
  EXPECT_EQ(destroyed, 1);
}

// A slow source goes last, so that one thread suffices for the others to be in time.
TEST(MaskThreads, WhoWasQuickGoesFirst) {
  class Ordered final : public MaskSource {
   public:
    explicit Ordered(std::vector<int>* order, int id) : order_(order), id_(id) {}
    void fill(std::span<const TokenId>, uint32_t*, int32_t) override { order_->push_back(id_); }
    void give_up(Why) override {}

   private:
    std::vector<int>* order_;
    int id_;
  };
  MaskThreads threads(1, kForever);
  std::vector<int> order;
  std::vector<Step> steps(3);
  std::vector<MaskThreads::Task> tasks;
  for (int i = 0; i < 3; ++i) {
    auto source = std::make_shared<Ordered>(&order, i);
    source->last_time = std::chrono::seconds(3 - i);
    tasks.push_back(steps[i].task(source));
  }
  threads.fill(tasks, 2);
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
}

}  // namespace
}  // namespace volley::decode
