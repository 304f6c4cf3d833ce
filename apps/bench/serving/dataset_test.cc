// Published datasets are read as they are, and answers judged by the number they give.
#include "apps/bench/serving/dataset.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

namespace volley::apps {
namespace {

namespace fs = std::filesystem;

class DatasetTest : public testing::Test {
 protected:
  ~DatasetTest() override { fs::remove(path_); }
  Result<Dataset> read(const std::string& text, int64_t limit = 100) const {
    std::ofstream(path_, std::ios::binary) << text;
    return read_dataset(path_, DatasetKind::kAuto, "Think.", limit);
  }
  const std::string path_ = (fs::temp_directory_path() / ("volley_dataset_" + std::to_string(getpid()))).string();
};

TEST_F(DatasetTest, Gsm8kAsPublished) {
  const auto dataset = read(R"({"question": "How many?", "answer": "<<2*600=1200>>\n#### 1,200"})"
                            "\n",
                            5);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ(dataset->kind, DatasetKind::kGsm8k);
  ASSERT_EQ(dataset->samples.size(), 1u);
  EXPECT_EQ(dataset->samples[0].prompt, "How many?\nThink.");
  EXPECT_EQ(dataset->samples[0].expected, "1200");
  EXPECT_EQ(dataset->note, "");
}

TEST_F(DatasetTest, HumanEvalCompressedAndNotJudged) {
  const std::string text = R"({"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "x"})"
                           "\n";
  gzFile file = gzopen(path_.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  const auto dataset = read_dataset(path_, DatasetKind::kAuto, "", 10);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ(dataset->kind, DatasetKind::kHumanEval);
  EXPECT_EQ(dataset->samples[0].prompt, "def f():\n");
  EXPECT_FALSE(dataset->samples[0].expected);
  EXPECT_NE(dataset->note.find("running them"), std::string::npos);
}

TEST_F(DatasetTest, LinesOfRequests) {
  const auto dataset = read(R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "expected": "12"})"
                            "\n\n"
                            R"({"prompt": "b", "answer": 7})"
                            "\n"
                            R"({"prompt": "c"})",
                            100);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  ASSERT_EQ(dataset->samples.size(), 3u);
  EXPECT_EQ(dataset->samples[0].messages_json, R"([{"content":"a","role":"user"}])");
  EXPECT_EQ(dataset->samples[0].max_tokens, 9);
  EXPECT_EQ(dataset->samples[0].expected, "12");
  EXPECT_EQ(dataset->samples[1].expected, "7");
  EXPECT_FALSE(dataset->samples[2].expected);
  EXPECT_EQ(read("{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n", 1)->samples.size(), 1u);
}

TEST_F(DatasetTest, WhatIsWrongIsNamed) {
  for (const char* text : {"", "no json\n", "[]\n", "{\"text\": 1}\n", "{\"question\": 1, \"answer\": \"#### 1\"}\n"}) {
    const auto dataset = read(text);
    ASSERT_FALSE(dataset.ok()) << text;
    EXPECT_NE(dataset.error().message.find(path_), std::string::npos);
  }
  EXPECT_EQ(read_dataset("/nowhere", DatasetKind::kAuto, "", 1).error().code, ErrorCode::kNotFound);
}

TEST(Judge, NumbersAreFoundWhereAnswersPutThem) {
  for (const char* right : {"18", "so\n#### 18", "#### $18.00", "\\boxed{18}.", "It is 18.", "She has $18", "**18**",
                            "18 is 3 * 6\n#### 18", "Answer: 018"}) {
    EXPECT_TRUE(is_right("18", right)) << right;
  }
  for (const char* wrong : {"", "none", "#### 19", "118", "1.8", "-18", "18\n#### 20", "#### none, 18"}) {
    EXPECT_FALSE(is_right("18", wrong)) << wrong;
  }
  EXPECT_TRUE(is_right("-3", "That is -3."));
  EXPECT_TRUE(is_right("3", "5 - 2 is not 5-3"));
  EXPECT_TRUE(is_right("1200", "It costs 1,200 dollars"));
  EXPECT_TRUE(is_right("1200", "#### 1200.0"));
  EXPECT_TRUE(is_right("0.5", "#### .5"));
  EXPECT_TRUE(is_right("0.5", "#### 0.50"));
}

TEST(Judge, OtherAnswersAreComparedAsText) {
  EXPECT_TRUE(is_right("1, 2, 3", "1, 2, 3\n")) << "three numbers are a text";
  EXPECT_TRUE(is_right(R"({"a": 1})", " {\"a\": 1} "));
  EXPECT_FALSE(is_right("river, stone", "stone, river"));
}

}  // namespace
}  // namespace volley::apps
