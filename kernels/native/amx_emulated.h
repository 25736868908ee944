// The tile instructions in plain C++, for tests on processors without them: what Intel's manual (volume 2, the
// operations of LDTILECFG, TILELOADD, TILESTORED, TILEZERO, TDPBF16PS, TDPBSUD, TILERELEASE; volume 1, the exception
// classes AMX-E1 to E6) says, bit by bit. Where the processor would raise #GP or #UD, the process ends with the reason.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tokenbus::emulated {

constexpr int kTiles = 8, kTileRows = 16, kTileBytes = 64;

struct Tile {
  int rows = 0, bytes = 0;  // both 0: not configured
  alignas(64) uint8_t data[kTileRows][kTileBytes] = {};
};

inline thread_local Tile tiles[kTiles];
inline thread_local bool is_configured = false;

inline void require(bool condition, const char* fault) {
  if (condition) return;
  fprintf(stderr, "AMX: %s\n", fault);
  abort();
}

inline void release() {
  for (Tile& tile : tiles) tile = Tile{};
  is_configured = false;
}

inline void load_config(const void* memory) {
  uint8_t config[64];
  memcpy(config, memory, sizeof config);
  require(config[0] <= 1, "#GP: no such palette");
  for (int byte = 2; byte < 64; byte++)
    if (byte < 16 || (byte >= 32 && byte < 48) || byte >= 56)
      require(config[byte] == 0, "#GP: reserved bytes of a configuration");
  release();
  if (config[0] == 0) return;
  for (int index = 0; index < kTiles; index++) {
    Tile& tile = tiles[index];
    tile.rows = config[48 + index];
    tile.bytes = config[16 + 2 * index] | config[17 + 2 * index] << 8;
    require(tile.rows <= kTileRows && tile.bytes <= kTileBytes, "#GP: a tile of more than 16 rows or 64 bytes");
    require((tile.rows == 0) == (tile.bytes == 0), "#GP: a tile with rows and no bytes, or bytes and no rows");
  }
  is_configured = true;
}

inline Tile& valid(int index) {
  require(is_configured, "#UD: tiles are not configured");
  require(index >= 0 && index < kTiles && tiles[index].rows > 0, "#UD: this tile is not configured");
  return tiles[index];
}

inline void zero(int index) { memset(valid(index).data, 0, sizeof(Tile::data)); }

// All that lies beyond the configured rows and bytes becomes zero.
inline void load(int index, const void* base, int64_t stride) {
  Tile& tile = valid(index);
  memset(tile.data, 0, sizeof tile.data);
  for (int row = 0; row < tile.rows; row++)
    memcpy(tile.data[row], static_cast<const uint8_t*>(base) + row * stride, tile.bytes);
}

inline void store(int index, void* base, int64_t stride) {
  const Tile& tile = valid(index);
  for (int row = 0; row < tile.rows; row++)
    memcpy(static_cast<uint8_t*>(base) + row * stride, tile.data[row], tile.bytes);
}

// sums: m x n, a: m x k, b: k x n, all in units of four bytes.
struct Operands {
  Tile& sums;
  const Tile& a;
  const Tile& b;
  int m, n, k;
};

inline Operands operands(int sums, int a, int b) {
  require(sums != a && sums != b && a != b, "#UD: operands must be three different tiles");
  Tile& c = valid(sums);
  const Tile &x = valid(a), &y = valid(b);
  require(c.bytes % 4 == 0 && x.bytes % 4 == 0 && y.bytes % 4 == 0, "#UD: rows are not whole words");
  require(c.bytes == y.bytes, "#UD: sums and second operand differ in columns");
  require(c.rows == x.rows, "#UD: sums and first operand differ in rows");
  require(x.bytes / 4 == y.rows, "#UD: first operand's columns are not the second one's rows");
  return {c, x, y, c.rows, c.bytes / 4, y.rows};
}

inline void zero_upper_rows(Tile& tile) {
  for (int row = 0; row < tile.rows; row++) memset(tile.data[row] + tile.bytes, 0, kTileBytes - tile.bytes);
  memset(tile.data[tile.rows], 0, (kTileRows - tile.rows) * kTileBytes);
}

// Denormal numbers count as zero, as operands and as results, whatever the thread's MXCSR says.
inline float flush(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits;
  memcpy(&value, &bits, 4);
  return value;
}

inline float half_of(const uint8_t* pair, int half) {
  uint16_t value;
  memcpy(&value, pair + 2 * half, 2);
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return flush(result);
}

// The first values of all pairs are added up one after the other, each product and sum rounded once; the second ones
// too, apart from them; then both sums to each other, and that to what the tile held.
inline void dot_bf16(int sums, int a, int b) {
  const Operands of = operands(sums, a, b);
  for (int row = 0; row < of.m; row++) {
    float parts[2][kTileBytes / 4] = {};
    for (int k = 0; k < of.k; k++)
      for (int half = 0; half < 2; half++) {
        const float input = half_of(of.a.data[row] + 4 * k, half);
        for (int column = 0; column < of.n; column++)
          parts[half][column] =
              flush(std::fma(input, half_of(of.b.data[k] + 4 * column, half), parts[half][column]));
      }
    for (int column = 0; column < of.n; column++) {
      float sum;
      memcpy(&sum, of.sums.data[row] + 4 * column, 4);
      sum = flush(flush(sum) + flush(parts[0][column] + parts[1][column]));
      memcpy(of.sums.data[row] + 4 * column, &sum, 4);
    }
  }
  zero_upper_rows(of.sums);
}

// Signed bytes of a times unsigned bytes of b, in 32 bits that wrap around.
inline void dot_s8u8(int sums, int a, int b) {
  const Operands of = operands(sums, a, b);
  for (int row = 0; row < of.m; row++)
    for (int k = 0; k < of.k; k++)
      for (int column = 0; column < of.n; column++) {
        uint32_t sum;
        memcpy(&sum, of.sums.data[row] + 4 * column, 4);
        for (int byte = 0; byte < 4; byte++)
          sum += static_cast<uint32_t>(static_cast<int8_t>(of.a.data[row][4 * k + byte]) *
                                       of.b.data[k][4 * column + byte]);
        memcpy(of.sums.data[row] + 4 * column, &sum, 4);
      }
  zero_upper_rows(of.sums);
}

}  // namespace tokenbus::emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbsud
#define _tile_loadconfig tokenbus::emulated::load_config
#define _tile_release tokenbus::emulated::release
#define _tile_loadd tokenbus::emulated::load
#define _tile_stored(tile, base, stride) tokenbus::emulated::store(tile, base, stride)
#define _tile_zero tokenbus::emulated::zero
#define _tile_dpbf16ps tokenbus::emulated::dot_bf16
#define _tile_dpbsud tokenbus::emulated::dot_s8u8
