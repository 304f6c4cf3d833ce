// A vision tower described as data: the part of a model that makes vectors of pictures (arXiv:2511.21631).
// Patches become rows, to which embeddings of their places are added. Each layer is x += proj(attention(norm(x))), then
// x += fc2(gelu(fc1(norm(x)))): LayerNorm, biases everywhere, attention of all patches of a picture to one another, and
// rotary angles of a patch's row and column. A merger turns squares of patches into vectors of the decoder's width.
#pragma once

#include <volley/engine.h>

#include <vector>

namespace volley::model {

struct TowerSpec {
  PictureRules rules;
  int32_t layers = 0, hidden = 0, inner = 0, heads = 0;
  int32_t frames = 2;         // copies of a picture that its patches hold, because they are made for video
  int32_t side = 0;           // places along an edge of the table of embeddings
  int32_t out = 0;            // width of the vectors: the decoder's
  std::vector<int32_t> deep;  // ascending: layers whose outputs have mergers of their own, for DeepStack
  float norm_eps = 1e-6f;
  double theta = 10000.0;

  int32_t head_dim() const { return hidden / heads; }
  int64_t patch_values() const { return int64_t{3} * frames * rules.patch_size * rules.patch_size; }
  int32_t merged() const { return rules.merge_size * rules.merge_size; }  // patches of a token
  int64_t merger_width() const { return int64_t{hidden} * merged(); }
  int64_t kinds() const { return 1 + static_cast<int64_t>(deep.size()); }  // vectors of a token
  // The most patches that a picture may have.
  int64_t most_patches() const { return rules.max_pixels / (int64_t{rules.patch_size} * rules.patch_size); }
};

// The units into which the work over one picture is cut, in order: each is one stage of the tower over some rows, and
// none depends on later ones. Arithmetic alone: all processes divide a picture alike.
class TowerUnits {
 public:
  TowerUnits(const TowerSpec& spec, int64_t patches, int64_t rows_of_unit);

  enum class Stage { kEmbed, kProject, kAttend, kMerge };
  struct Unit {
    Stage stage = Stage::kEmbed;
    int32_t index = 0;            // the layer, or the merger: 0 is the last, i + 1 is that of deep[i]
    int64_t first = 0, rows = 0;  // patches
  };
  int32_t count() const { return stages_ * pieces_; }
  Unit operator[](int32_t unit) const;
  double macs(int32_t unit) const;  // multiply-adds

 private:
  const TowerSpec& spec_;
  int64_t patches_, rows_;
  int32_t pieces_, stages_;
  std::vector<Unit> order_;  // without rows
};

}  // namespace volley::model
