#include "sched/request.h"

#include <gtest/gtest.h>

#include "sched/scheduler_testing.h"

namespace volley::sched {
namespace {

class RequestStates : public testing::Test {
 protected:
  Resources resources() { return {SlotLease(slots_), cache_.open("", {}, false)}; }

  kv::Cache cache_{{.page_size = 4, .groups = {{.pages = 8}}}};
  SlotPool slots_{2};
  Request request_{{.id = 7, .space = "", .prompt = counting(0, 5), .max_tokens = 4}};
};

TEST_F(RequestStates, LivesThroughPreemption) {
  EXPECT_EQ(request_.computed(), 0);
  request_.start(resources(), 2);
  EXPECT_TRUE(request_.prefilling());
  EXPECT_EQ(request_.prefill_length(), 5);
  request_.advance(2);
  EXPECT_EQ(request_.computed(), 4);
  request_.commit(Tokens{50});
  EXPECT_TRUE(request_.decoding());
  EXPECT_EQ(request_.computed(), 5);
  request_.commit(Tokens{51, 52});
  EXPECT_EQ(request_.computed(), 7);
  EXPECT_EQ(request_.remaining(), 1);

  request_.stop();
  EXPECT_FALSE(request_.running());
  EXPECT_EQ(request_.prefill_length(), 7);
  request_.start(resources(), 4);
  EXPECT_EQ(request_.slot(), SlotId(0));
  request_.advance(3);
  EXPECT_TRUE(request_.decoding());
  EXPECT_EQ(request_.length(), 8);
}

TEST_F(RequestStates, DecodesAtOnceWhenAllButTheLastTokenIsCached) {
  request_.start(resources(), 0);
  request_.advance(4);
  request_.commit(Tokens{50});
  request_.stop();
  request_.start(resources(), 5);
  EXPECT_TRUE(request_.decoding());
}

TEST_F(RequestStates, IllegalTransitionsNameEventAndState) {
  EXPECT_DEATH(request_.stop(), "request 7: stop while waiting");
  EXPECT_DEATH(request_.advance(1), "request 7: advance while waiting");
  EXPECT_DEATH(request_.commit(Tokens{1}), "request 7: commit while waiting");
  EXPECT_DEATH(request_.slot(), "request 7: use of resources while waiting");
  EXPECT_DEATH(request_.start(resources(), 5), "cached < ");
  request_.start(resources(), 0);
  EXPECT_DEATH(request_.start(resources(), 0), "request 7: start while prefilling");
  EXPECT_DEATH(request_.advance(5), "new_prompt");  // the row that chooses must not be lost
  EXPECT_DEATH(request_.commit(Tokens{1, 2}), "tokens.size");
  request_.advance(4);
  request_.commit(Tokens{50});
  EXPECT_DEATH(request_.advance(1), "request 7: advance while decoding");
  EXPECT_DEATH(request_.commit(Tokens{1, 2, 3, 4}), "remaining");
}

}  // namespace
}  // namespace volley::sched
