// Pillow's antialiased bicubic resize of 8-bit RGB, bit for bit: Image.resize(size, BICUBIC) of Pillow 13.
//
// Two passes, each to 8 bits; a pass that keeps its size is left out. Which one is first changes the last bits:
// columns, where the height shrinks by more than twice what the width does (h > h' and h - h' > 2 (w - w')), else rows.
// This rule was found by measuring Pillow 13.0.0 (8,653 sizes); releases before it have rows first always. Weights are
// Keys' cubic with a = -0.5, stretched by the scale where the image shrinks, normalized in f64 and rounded to 22 bits
// behind the point; sums are integers, so every processor gives the same bits.
//
// Thread safety: free functions without state.
#pragma once

#include "media/image.h"

namespace millrace {

// width, height >= 1. Takes memory for the result, and once more for the image between the passes.
Image resize_bicubic(const Image& image, int width, int height);

}  // namespace millrace
