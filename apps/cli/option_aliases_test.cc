// Protects commands written for other servers, and the answers to typing mistakes.
#include "apps/cli/option_aliases.h"

#include <gtest/gtest.h>

namespace volley::apps {
namespace {

using Words = std::vector<std::string>;

TEST(OptionAliases, NamesOfOtherServersBecomeOurs) {
  EXPECT_EQ(translate_aliases({"serve", "--model-path", "m", "--gpu-memory-utilization=0.8", "--mem-fraction-static",
                               "0.7", "--enable-prefix-caching", "--no-enable-prefix-caching", "-tp", "2",
                               "--tp-size=4", "-dp", "2", "--dp-size=3", "-ep", "--enable-ep-moe", "--port", "1"}),
            (Words{"serve", "--model", "m", "--memory-fraction=0.8", "--memory-fraction", "0.7", "--no-prefix-cache",
                   "--tensor-parallel-size", "2", "--tensor-parallel-size=4", "--data-parallel-size", "2",
                   "--data-parallel-size=3", "--enable-expert-parallel", "--enable-expert-parallel", "--port", "1"}));
  EXPECT_EQ(translate_aliases({"generate", "--prompt", "--model-pathology"}),
            (Words{"generate", "--prompt", "--model-pathology"}));
}

TEST(OptionAliases, WhatIsSoAnywayIsLeftOut) {
  EXPECT_EQ(translate_aliases({"serve", "--no-enable-expert-parallel", "--port", "1"}),
            (Words{"serve", "--port", "1"}));
}

TEST(OptionAliases, WhatIsSoAnywayCanBeTurnedOffWhereThatIsBuilt) {
  EXPECT_EQ(translate_aliases({"--enable-prefix-caching=true", "--enable-chunked-prefill=1", "--port=1"}),
            (Words{"--port=1"}));
  EXPECT_EQ(translate_aliases({"--enable-prefix-caching=false", "--no-enable-expert-parallel=false"}),
            (Words{"--no-prefix-cache", "--enable-expert-parallel"}));
  const Words neither = {"--enable-chunked-prefill=false", "--enable-prefix-caching=maybe"};
  EXPECT_EQ(translate_aliases(neither), neither);
  EXPECT_EQ(instead_of("--enable-chunked-prefill"), "what it asks for is always so, leave it out");
}

TEST(OptionAliases, AnAddressWithItsPortIsTwoOptions) {
  const Words two = {"serve", "--master-addr=gpu-1", "--master-port=5000", "--port", "1"};
  EXPECT_EQ(translate_aliases({"serve", "--dist-init-addr", "gpu-1:5000", "--port", "1"}), two);
  EXPECT_EQ(translate_aliases({"serve", "--dist-init-addr=gpu-1:05000", "--port", "1"}), two);
  EXPECT_EQ(translate_aliases({"--dist-init-addr=[::1]:5000"}), (Words{"--master-addr=::1", "--master-port=5000"}));
  for (const char* wrong : {"gpu-1", ":5", "gpu-1:0", "gpu-1:65536", "gpu-1:", "gpu-1:5x"}) {
    EXPECT_EQ(translate_aliases({"--dist-init-addr", wrong}), (Words{"--dist-init-addr", wrong}));
  }
  EXPECT_EQ(translate_aliases({"--dist-init-addr"}), Words{"--dist-init-addr"});
}

TEST(OptionAliases, NamesWithoutACounterpartSayWhatToDo) {
  for (const char* theirs : {"--ep-size", "--ep", "--expert-parallel-size"}) {
    EXPECT_TRUE(instead_of(theirs).starts_with("use --enable-expert-parallel")) << theirs;
  }
  EXPECT_TRUE(instead_of("--load-format").starts_with("use --dummy-weights"));
  EXPECT_TRUE(instead_of("--max-prefill-tokens").starts_with("use --max-num-batched-tokens"));
  EXPECT_EQ(instead_of("--page-size"), "");
}

TEST(OptionAliases, TheNearestNameIsTheOneMeant) {
  const Words names = {"--max-model-len", "--max-num-seqs", "--port", "--host", "serve", "generate"};
  EXPECT_EQ(nearest_name("--max-model-length", names), "--max-model-len");
  EXPECT_EQ(nearest_name("--max-modle-len", names), "--max-model-len");
  EXPECT_EQ(nearest_name("--prot", names), "--port");
  EXPECT_EQ(nearest_name("serv", names), "serve");
  EXPECT_EQ(nearest_name("gen", names), "") << "too short to be sure";
  EXPECT_EQ(nearest_name("gene", names), "generate") << "a beginning";
  EXPECT_EQ(nearest_name("--quantization", names), "");
}

}  // namespace
}  // namespace volley::apps
