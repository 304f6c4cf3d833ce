// Protects: a trainer gets every row of the target as it was, in order, however small its ring is; a ring that nobody
// reads any more ends the engine's work with a sentence.
#include "decode/features/features_spec.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/temp_folder_for_test.h"
#include "device/fault.h"

namespace volley::decode::features {
namespace {

constexpr int64_t kHidden = 3;
constexpr int64_t kRow = 16 + 32;  // two layers of three floats, rounded up

// A ring with room for `rows`, and a proposer that writes to it.
struct World {
  explicit World(int64_t rows, int64_t reader = getpid()) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    bytes = static_cast<size_t>(kRingPage + rows * kRow);
    EXPECT_EQ(ftruncate(file, static_cast<off_t>(bytes)), 0);
    memory = static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    head().bytes = rows * kRow;
    head().reader = reader;
    head().magic = kRingMagic;
  }
  ~World() { munmap(memory, bytes); }

  RingHead& head() { return *reinterpret_cast<RingHead*>(memory); }
  auto make(int32_t most_rows = 8) { return make_proposer(*device, {1, 5}, kHidden, DType::kF32, path, 4, most_rows); }

  void commit(Proposer& proposer, int32_t count) {
    std::vector<int32_t> ids(count), slots(count, 2), positions(count);
    std::iota(positions.begin(), positions.end(), 0);
    for (int32_t i = 0; i < count; ++i) ids[i] = 100 + i;
    std::vector<float> values(static_cast<size_t>(count * 2 * kHidden));
    std::iota(values.begin(), values.end(), 0.0F);
    ops::Rows rows;
    rows.rows = count;
    rows.token_ids = TensorView(ids.data(), DType::kI32, {count});
    rows.slots = TensorView(slots.data(), DType::kI32, {count});
    rows.cache_positions = TensorView(positions.data(), DType::kI32, {count});
    Arena scratch(Buffer{});
    proposer.commit(device->stream(), rows, TensorView(values.data(), DType::kF32, {count, 2 * kHidden}), scratch);
  }

  // The next row, which it waits for: token, slot, position, and the first and the last value.
  std::vector<double> take() {
    const int64_t at = head().read;
    while (head().written == at) std::this_thread::yield();
    const std::byte* row = memory + kRingPage + at % (head().bytes / kRow) * kRow;
    int32_t facts[3];
    float values[2 * kHidden];
    std::memcpy(facts, row, sizeof(facts));
    std::memcpy(values, row + 16, sizeof(values));
    head().read = at + 1;
    return {double(facts[0]), double(facts[1]), double(facts[2]), values[0], values[2 * kHidden - 1]};
  }

  TempFolder folder;
  std::string path = folder.path() + "/ring";
  std::unique_ptr<Device> device = std::move(*make_cpu_device(1));
  size_t bytes = 0;
  std::byte* memory = nullptr;
};

TEST(FeatureStream, EveryRowArrivesThroughARingThatIsSmallerThanAPass) {
  World world(3);
  auto proposer = world.make();
  ASSERT_TRUE(proposer.ok()) << proposer.error().message;
  EXPECT_EQ(world.head().row_bytes, kRow);
  std::thread engine([&] {
    for (int pass = 0; pass < 9; ++pass) world.commit(**proposer, 8);
  });
  for (int i = 0; i < 72; ++i) {
    const int at = i % 8;
    EXPECT_EQ(world.take(), (std::vector<double>{100.0 + at, 2, double(at), 6.0 * at, 6.0 * at + 5}));
  }
  engine.join();
  EXPECT_FALSE(world.make().ok()) << "a second engine would mix its rows with the first one's";
}

// Else a device stands still while rows are written.
TEST(FeatureStream, TwoPassesEndBeforeTheirRowsAreWritten) {
  constexpr int32_t kRows = 900'000;  // three pieces
  World world(3);
  auto proposer = world.make(kRows);
  ASSERT_TRUE(proposer.ok()) << proposer.error().message;
  std::atomic<int> passes = 0;
  std::thread engine([&] {
    for (; passes < 2; ++passes) world.commit(**proposer, kRows);
  });
  for (int i = 0; i < 600 && passes < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(passes, 2) << "nobody has read a row";
  world.head().read = 1 << 30;  // the ring never fills again
  engine.join();
}

TEST(FeatureStream, AReaderThatHasEndedIsASentence) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  World world(2, child);  // a process that is no more
  auto proposer = world.make();
  ASSERT_TRUE(proposer.ok()) << proposer.error().message;
  try {
    world.commit(**proposer, 8);
    FAIL() << "nobody reads";
  } catch (const DeviceFault& fault) {
    EXPECT_NE(std::string(fault.what()).find("has ended: start it again"), std::string::npos) << fault.what();
  }
}

TEST(FeatureStream, AFileThatIsNoRingIsRefused) {
  World world(2);
  world.head().magic = 7;
  EXPECT_EQ(world.make().error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(make_proposer(*world.device, {1}, kHidden, DType::kF32, world.folder.path() + "/none", 1, 8).error().code,
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace volley::decode::features
