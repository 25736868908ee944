// One tile instruction on tiles read from the standard input, for tests/kernels/test_amx.py: on the processor, or, with
// TOKENBUS_EMULATE_AMX, on the emulation.
//
// argv[1]: "bf16", "bytes", "same" (an operand twice), "unconfigured", "zero"; or of our own functions, "reshape" (to the
// products' tiles of 16 rows, then of 3) and "released". Input: 64 bytes of configuration, then 1024 bytes each for tile
// 0 (sums), 1 and 2, rows 64 bytes apart. Output: tile 0, stored over 1024 bytes of 0xee.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/native/amx.h"

static void read_whole(void* to, size_t bytes) {
  if (fread(to, 1, bytes, stdin) != bytes) exit(2);
}

int main(int, char** arguments) {
  const std::string operation = arguments[1];
  alignas(64) static uint8_t config[64], tiles[3][1024];
  read_whole(config, sizeof config);
  read_whole(tiles, sizeof tiles);
  if (!tokenbus::tiles_allowed()) return 3;
  asm volatile("" : : "r"(config), "r"(tiles) : "memory");
  if (operation != "unconfigured") _tile_loadconfig(config);
  _tile_loadd(0, tiles[0], 64);
  _tile_loadd(1, tiles[1], 64);
  _tile_loadd(2, tiles[2], 64);
  if (operation == "bf16") _tile_dpbf16ps(0, 1, 2);
  if (operation == "bytes") _tile_dpbsud(0, 1, 2);
#ifdef TOKENBUS_EMULATE_AMX  // an assembler would refuse to write this
  if (operation == "same") _tile_dpbf16ps(0, 1, 1);
#endif
  if (operation == "zero") _tile_zero(0);
  if (operation == "reshape") {
    tokenbus::configure_tiles(16);
    tokenbus::configure_tiles(3);
  }
  if (operation == "released") {
    tokenbus::configure_tiles(16);
    tokenbus::release_tiles();
  }
  memset(tiles[0], 0xee, sizeof tiles[0]);
  asm volatile("" : : "r"(tiles) : "memory");
  _tile_stored(0, tiles[0], 64);
  _tile_release();
  return fwrite(tiles[0], 1, sizeof tiles[0], stdout) == sizeof tiles[0] ? 0 : 2;
}
