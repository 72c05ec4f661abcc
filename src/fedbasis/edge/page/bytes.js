// Bytes: joined, unpacked from the page, hashed, and put into a zip file. The page may request nothing (connect-src
// 'none'), so what is embedded is decoded here and not fetched from a data: address.
"use strict";

const utf8 = (text) => new TextEncoder().encode(text);

// The same memory as bytes, without a copy.
const rawBytes = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

function joined(parts) {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// What `fedbasis export` embedded: gzip, then base64.
const unpacked = (text) => gunzip(fromBase64(text.trim()));

// SHA-256. crypto.subtle is missing where a page is served over plain http, and the card of a model needs the digest.
const SHA_ROOTS = (() => {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((p) => n % p)) primes.push(n);
  const fraction = (x) => ((x - Math.floor(x)) * 2 ** 32) >>> 0;
  return { start: primes.slice(0, 8).map((p) => fraction(Math.sqrt(p))), rounds: Uint32Array.from(primes, (p) => fraction(Math.cbrt(p))) };
})();

function sha256(bytes) {
  const state = Uint32Array.from(SHA_ROOTS.start);
  const words = new Uint32Array(64);
  const rest = bytes.length % 64;
  const tail = new Uint8Array(rest < 56 ? 64 : 128);
  tail.set(bytes.subarray(bytes.length - rest));
  tail[rest] = 0x80;
  new DataView(tail.buffer).setBigUint64(tail.length - 8, BigInt(bytes.length) * 8n);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  const block = (view, at) => {
    for (let i = 0; i < 16; i++) words[i] = view.getUint32(at + 4 * i);
    for (let i = 16; i < 64; i++) {
      const a = words[i - 15];
      const b = words[i - 2];
      words[i] = words[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + words[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + SHA_ROOTS.rounds[i] + words[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + one) | 0, c, b, a, (one + two) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, i) => { state[i] += value; });
  };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at + 64 <= bytes.length; at += 64) block(view, at);
  const end = new DataView(tail.buffer);
  for (let at = 0; at < tail.length; at += 64) block(end, at);
  return [...state].map((word) => word.toString(16).padStart(8, "0")).join("");
}

// CRC-32, which every entry of a zip file has.
const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc32(bytes) {
  let value = ~0;
  for (let i = 0; i < bytes.length; i++) value = (value >>> 8) ^ CRC_TABLE[(value ^ bytes[i]) & 255];
  return ~value >>> 0;
}

// A zip file of {path: bytes}. Nothing is compressed: weights would hardly shrink. The date is fixed (1980-01-01), so
// that the file does not say when it was made.
function zip(files) {
  const bodies = [];
  const entries = [];
  let at = 0;
  const little = (values) => {
    const out = new DataView(new ArrayBuffer(values.reduce((sum, [size]) => sum + size, 0)));
    let place = 0;
    for (const [size, value] of values) {
      if (size === 2) out.setUint16(place, value, true);
      else out.setUint32(place, value, true);
      place += size;
    }
    return new Uint8Array(out.buffer);
  };
  for (const [path, bytes] of Object.entries(files)) {
    const name = utf8(path);
    const common = [[2, 20], [2, 0x800], [2, 0], [2, 0], [2, 0x21], [4, crc32(bytes)], [4, bytes.length], [4, bytes.length], [2, name.length], [2, 0]];
    const head = joined([little([[4, 0x04034b50], ...common]), name]);
    entries.push(joined([little([[4, 0x02014b50], [2, 20], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, at]]), name]));
    bodies.push(head, bytes);
    at += head.length + bytes.length;
  }
  const directory = joined(entries);
  const count = entries.length;
  const end = little([[4, 0x06054b50], [2, 0], [2, 0], [2, count], [2, count], [4, directory.length], [4, at], [2, 0]]);
  return joined([...bodies, directory, end]);
}

// The index of the largest number; the first one, if there are several.
const largest = (row) => row.reduce((best, value, i) => (value > row[best] ? i : best), 0);
