#include "kernels/native/amx.h"

#ifdef TOKENBUS_TILES
#include <sys/syscall.h>
#include <unistd.h>

namespace tokenbus {

namespace {

// What LDTILECFG loads (Intel's manual, volume 2).
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

thread_local int configured_rows = 0;  // 0: the tiles are released

bool ask_for_tiles() {
#ifdef TOKENBUS_EMULATE_AMX
  return TOKENBUS_EMULATE_AMX != 0;
#else
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#endif
}

}  // namespace

bool tiles_allowed() {
  static const bool allowed = ask_for_tiles();
  return allowed;
}

void configure_tiles(int rows) {
  if (configured_rows == rows) return;
  TileConfig config;
  for (int tile = 0; tile < 8; tile++) {
    config.bytes_per_row[tile] = 64;
    config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
  }
  asm volatile("" : : "r"(&config) : "memory");  // g++ believes that only its first bytes are read
  _tile_loadconfig(&config);
  configured_rows = rows;
}

void release_tiles() {
  if (configured_rows == 0) return;
  _tile_release();
  configured_rows = 0;
}

}  // namespace tokenbus
#endif
