// How values are quantised at load. Private to this folder.
#pragma once

#include <cstdint>

namespace volley::ops {

// One group: codes from 0 to 15, which count from 8. Returns the scale; NaN where a value is not finite. Codes come
// from value * inverse. Of the inverses that make the extreme value a code from 7 to 9 in magnitude, the one is taken
// whose codes, with the scale that suits them best, leave the least squared error.
float quantise_int4(const float* values, int64_t count, uint8_t* codes);

// One group: e4m3 codes, as quantise_rows() makes them of a row. Returns the scale; NaN where a value is not finite.
float quantise_fp8(const float* values, int64_t count, uint8_t* codes);

}  // namespace volley::ops
