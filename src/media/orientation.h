// How a picture is to be turned before it is shown: EXIF's orientation and its copy in XMP. For this folder alone.
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "media/image.h"

namespace millrace {

// The orientation of a TIFF block, with or without "Exif\0\0" before it; nullopt: it has none. A block that is cut off
// gives what stands before the cut, and what is no TIFF gives nothing: metadata never fails a picture.
std::optional<int> exif_orientation(std::span<const uint8_t> exif);

// The first tiff:Orientation of an XMP packet.
std::optional<int> xmp_orientation(std::span<const uint8_t> xmp);

// EXIF's where it has one, else XMP's; 1 where that is none of 1 to 8.
int choose_orientation(std::optional<int> exif, std::optional<int> xmp);

// The picture as orientation 1 (PIL.ImageOps.exif_transpose). 5 to 8 exchange width and height.
Image apply_orientation(Image image, int orientation);

}  // namespace millrace
