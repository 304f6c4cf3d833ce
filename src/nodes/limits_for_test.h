// Limits of small models, for tests of messages.
#pragma once

#include "nodes/calls.h"

namespace volley::nodes {

inline CallLimits limits() {
  CallLimits all;
  all.slots = 4;
  all.max_rows = 64;
  all.max_positions = 100;
  all.page_size = 16;
  all.block_size = 8;
  all.proposals = {7, 5};
  all.vocab = 50;
  all.hidden = 3;
  all.vectors = 2;
  all.rope_axes = true;
  all.logit_rows = 32;
  all.groups.resize(2);
  all.groups[0].pages = 10;
  all.groups[1].pages = 5;
  all.snapshots = 3;
  all.picture_side = 2;
  all.picture_pixels = 16;
  return all;
}

}  // namespace volley::nodes
