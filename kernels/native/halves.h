// Sixteen lanes where registers have eight: two of them, with the operators that g++'s vector types have.
//
// g++ takes vector types of twice the machine's width, but keeps them in memory, and compares and selects lane by lane:
// attention took several times as long with them.
#pragma once
#include <cstdint>

template <class Lane>
struct Halves {
  typedef Lane Eight __attribute__((vector_size(32)));

  Eight low, high;

  static Eight eight(Lane lane) { return Eight{lane, lane, lane, lane, lane, lane, lane, lane}; }

  Halves() = default;
  Halves(Eight low, Eight high) : low(low), high(high) {}
  Halves(Lane everywhere) : low(eight(everywhere)), high(low) {}
  // The same bits.
  template <class Other>
  explicit Halves(const Halves<Other>& other) : low((Eight)other.low), high((Eight)other.high) {}

  Lane operator[](int lane) const { return lane < 8 ? low[lane] : high[lane - 8]; }
  Halves operator-() const { return {-low, -high}; }
  Halves operator~() const { return {~low, ~high}; }
  Halves operator<<(int bits) const { return {low << bits, high << bits}; }
  Halves operator>>(int bits) const { return {low >> bits, high >> bits}; }

  friend Halves operator+(Halves a, Halves b) { return {a.low + b.low, a.high + b.high}; }
  friend Halves operator-(Halves a, Halves b) { return {a.low - b.low, a.high - b.high}; }
  friend Halves operator*(Halves a, Halves b) { return {a.low * b.low, a.high * b.high}; }
  friend Halves operator/(Halves a, Halves b) { return {a.low / b.low, a.high / b.high}; }
  friend Halves operator&(Halves a, Halves b) { return {a.low & b.low, a.high & b.high}; }
  friend Halves operator|(Halves a, Halves b) { return {a.low | b.low, a.high | b.high}; }
  Halves& operator+=(Halves other) { return *this = *this + other; }

  // Masks: all bits of a lane, or none.
  friend Halves<int32_t> operator<(Halves a, Halves b) { return {a.low < b.low, a.high < b.high}; }
  friend Halves<int32_t> operator>(Halves a, Halves b) { return {a.low > b.low, a.high > b.high}; }
  friend Halves<int32_t> operator>=(Halves a, Halves b) { return {a.low >= b.low, a.high >= b.high}; }
  friend Halves<int32_t> operator==(Halves a, Halves b) { return {a.low == b.low, a.high == b.high}; }
};

typedef Halves<float> f32x16;
typedef Halves<int32_t> i32x16;
typedef Halves<uint32_t> u32x16;
typedef f32x16::Eight f32x8;
typedef i32x16::Eight i32x8;
typedef u32x16::Eight u32x8;
