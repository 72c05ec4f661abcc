// Named tensors as bytes: safetensors files are read and written, and bases in the compact coding are decoded to the
// very bytes of the float32 file (see fedbasis/tensors/compact.py, which says what the coding is).
"use strict";

const TYPES = { F32: Float32Array, I64: BigInt64Array, BF16: Uint16Array, F16: Uint16Array, U8: Uint8Array, I8: Int8Array };

function readHeader(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  delete header.__metadata__;
  return { header, start: 8 + length };
}

// {name: {dtype, shape, data}}; a name is "group/tensor".
function readTensors(bytes) {
  const { header, start } = readHeader(bytes);
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(header)) {
    if (!TYPES[dtype]) throw new Error(`the bases hold numbers of the type ${dtype}, which this page cannot read`);
    const part = bytes.slice(start + from, start + to); // a copy, so that its memory is aligned
    tensors[name] = { dtype, shape, data: new TYPES[dtype](part.buffer) };
  }
  return tensors;
}

// {name: {shape, data}} as one safetensors file.
function writeTensors(tensors) {
  const names = Object.keys(tensors).sort((a, b) => tensors[b].data.BYTES_PER_ELEMENT - tensors[a].data.BYTES_PER_ELEMENT || (a < b ? -1 : 1));
  const header = {};
  let at = 0;
  for (const name of names) {
    const { shape, data } = tensors[name];
    const dtype = data instanceof BigInt64Array ? "I64" : "F32";
    header[name] = { dtype, shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  const text = utf8(JSON.stringify(header));
  const padded = joined([text, utf8(" ".repeat((8 - (text.length % 8)) % 8))]); // so that the numbers are aligned
  const length = new Uint8Array(8);
  new DataView(length.buffer).setBigUint64(0, BigInt(padded.length), true);
  return joined([length, padded, ...names.map((name) => rawBytes(tensors[name].data))]);
}

// bfloat16 is the upper half of a float32.
function fromBfloat16(halves) {
  return new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
}

function fromFloat16(halves) {
  return Float32Array.from(halves, (half) => {
    const sign = half & 0x8000 ? -1 : 1;
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    return exponent === 31 ? (fraction ? NaN : sign * Infinity) : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
}

const asFloat32 = ({ dtype, data }) => (dtype === "BF16" ? fromBfloat16(data) : data);

// The codes of a matrix: int8; or three planes of bits; or two of 4 bits a byte, the even index in the low half.
function codesOf({ dtype, shape, data }, count) {
  if (dtype === "I8") return data;
  const codes = new Int8Array(count);
  if (shape.length === 2) {
    const bit = (plane, i) => ((data[plane * shape[1] + (i >> 3)] >> (i & 7)) & 1) << plane;
    for (let i = 0; i < count; i++) codes[i] = (bit(0, i) | bit(1, i) | bit(2, i)) - 4;
    return codes;
  }
  for (let i = 0; i < count; i++) codes[i] = ((data[i >> 1] >> (i & 1 ? 4 : 0)) & 15) - 8;
  return codes;
}

function decodedTensor(coded, group, name, near) {
  const vector = coded[`compact/vectors/${group}/${name}`];
  if (vector) {
    if (vector.dtype === "BF16") return fromBfloat16(vector.data);
    const difference = fromFloat16(vector.data);
    return Float32Array.from(near, (value, i) => value + difference[i]);
  }
  const scales = coded[`compact/scales/${group}/${name}`].data;
  const codes = codesOf(coded[`compact/codes/${group}/${name}`], near.length);
  const row = near.length / scales.length; // numbers of an output channel
  const out = new Float32Array(near.length);
  for (let channel = 0, i = 0; channel < scales.length; channel++) {
    for (const stop = i + row; i < stop; i++) out[i] = Math.fround(codes[i] * scales[channel]) + near[i];
  }
  return out;
}

// Coded bases and the header of the float32 file -> that file. The graphs refer to places in it.
function decodeBases(bytes, headerBytes) {
  const coded = readTensors(bytes);
  const { header, start } = readHeader(headerBytes);
  const end = Math.max(...Object.values(header).map(({ data_offsets: [, to] }) => to));
  const out = new Uint8Array(start + end);
  out.set(headerBytes);
  const references = {};
  for (const [key, tensor] of Object.entries(coded)) {
    const [, name] = key.match(/^compact\/(?:mean|reference\/.*)\/([^/]*)$/) ?? [];
    if (name !== undefined) references[name] = asFloat32(tensor);
  }
  for (const [key, { data_offsets: [from] }] of Object.entries(header)) {
    const cut = key.lastIndexOf("/");
    const [group, name] = [key.slice(0, cut), key.slice(cut + 1)];
    let data;
    if (coded[key]) data = coded[key].data; // not coded
    else if (coded[`compact/reference/${group}/${name}`]) data = references[name];
    else data = decodedTensor(coded, group, name, references[name]);
    out.set(rawBytes(data), start + from);
  }
  return out;
}
