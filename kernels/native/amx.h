// Tiles: Intel's registers of 16 rows by 64 bytes, and the instructions that multiply them (AMX, from Sapphire Rapids).
//
// A thread configures its tiles before their first use and releases them when a run of the team ends. Not later, since
// torch uses tiles too, on the thread that calls the engine: it would leave our threads' idea of their configuration
// wrong, and a tile of another shape is an illegal instruction. Released, they also cost nothing while a thread sleeps:
// the system saves 8 KB less for it, and the core may sleep deeply.
//
// With TOKENBUS_EMULATE_AMX=1 the same kernels run on any processor, since amx_emulated.h stands in for the instructions;
// with 0 they behave as if the system had refused.
#pragma once
#include "kernels/native/simd.h"

#ifdef TOKENBUS_EMULATE_AMX
#include "kernels/native/amx_emulated.h"
#endif

#if defined(__AMX_TILE__) || defined(TOKENBUS_EMULATE_AMX)
#define TOKENBUS_TILES
#endif

namespace tokenbus {

#ifdef TOKENBUS_TILES

// Whether this process may use tiles: Linux wants to be asked, once, and refuses where the processor, the hypervisor or
// a thread's signal stack is not up to it. The first call asks.
bool tiles_allowed();

// Shapes this thread's tiles for products of two blocks of `rows` rows (1 to 16) with two of 16 columns, 64 bytes of
// inputs at a time: tiles 0 to 3 are sums (row block 0: 0 and 1), 4 and 5 inputs, 6 and 7 weights. Cheap if they are
// shaped so already.
void configure_tiles(int rows);

// After this the tiles hold nothing, and whoever uses them next on this thread must configure them.
void release_tiles();

#else

inline void release_tiles() {}

#endif

}  // namespace tokenbus
