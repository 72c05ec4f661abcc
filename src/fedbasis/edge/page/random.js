// The random numbers of `fedbasis personalize`: with the same images in the same order this page holds out the same
// ones, and sees the same batches. Both generators start from states that `fedbasis export` wrote into the page.
"use strict";

// torch.Generator on the CPU: the Mersenne twister, seeded with the lower 32 bits.
class Twister {
  constructor(seed) {
    const words = new Uint32Array(624);
    words[0] = seed;
    for (let i = 1; i < 624; i++) words[i] = Math.imul(1812433253, words[i - 1] ^ (words[i - 1] >>> 30)) + i;
    this.words = words;
    this.at = 624;
  }

  next() {
    const words = this.words;
    if (this.at === 624) {
      for (let i = 0; i < 624; i++) {
        const y = (words[i] & 0x80000000) | (words[(i + 1) % 624] & 0x7fffffff);
        words[i] = words[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
      }
      this.at = 0;
    }
    let y = words[this.at++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  // torch.randperm(count, generator=...)
  permutation(count) {
    const rows = Array.from({ length: count }, (_, i) => i);
    for (let i = 0; i < count - 1; i++) {
      const j = i + (this.next() % (count - i));
      [rows[i], rows[j]] = [rows[j], rows[i]];
    }
    return rows;
  }
}

// numpy.random.Generator(PCG64(...)), from its state and increment, two decimal numbers of 128 bits.
class Pcg64 {
  constructor({ state, inc }) {
    this.state = BigInt(state);
    this.inc = BigInt(inc);
    this.spare = null;
  }

  next32() {
    if (this.spare !== null) {
      const kept = this.spare;
      this.spare = null;
      return kept;
    }
    this.state = BigInt.asUintN(128, this.state * 0x2360ed051fc65da44385df649fccf645n + this.inc);
    const mixed = (this.state >> 64n) ^ BigInt.asUintN(64, this.state);
    const turn = this.state >> 122n;
    const word = BigInt.asUintN(64, (mixed >> turn) | (mixed << (64n - turn)));
    this.spare = Number(word >> 32n);
    return Number(word & 0xffffffffn);
  }

  // A number in 0 ... last, as numpy's shuffle draws it: numbers of as many bits, until one is not too large.
  upTo(last) {
    const mask = 2 ** (32 - Math.clz32(last)) - 1;
    for (;;) {
      const value = (this.next32() & mask) >>> 0;
      if (value <= last) return value;
    }
  }

  permutation(count) {
    const rows = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = this.upTo(i);
      [rows[i], rows[j]] = [rows[j], rows[i]];
    }
    return rows;
  }
}

// Python's round(): a half goes to the even number.
function evenRound(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 === 0 ? low : low + 1;
}

// Which rows are held out: about a fifth of every class, and none if there are few images.
function heldOut(labels, { enough, share, state }) {
  const held = labels.map(() => false);
  if (labels.length < enough) return held;
  const generator = new Pcg64(state);
  for (const label of [...new Set(labels)].sort((a, b) => a - b)) {
    const rows = labels.flatMap((other, row) => (other === label ? [row] : []));
    const order = generator.permutation(rows.length);
    for (const at of order.slice(0, Math.min(rows.length - 1, evenRound(share * rows.length)))) held[rows[at]] = true;
  }
  return held;
}

// Shuffled row numbers in batches; a last batch of one is merged into the one before it.
function batches(count, size, generator) {
  const rows = generator.permutation(count);
  const parts = [];
  for (let at = 0; at < count; at += size) parts.push(rows.slice(at, at + size));
  if (parts.length > 1 && parts.at(-1).length === 1) parts.push([...parts.splice(-2)].flat());
  return parts;
}
