// What a client downloads: the two files of `fedbasis personalize`, and one ordinary ONNX file.
"use strict";

// Protobuf: a number in 7-bit parts, and a field that holds bytes.
function varint(number) {
  const out = [];
  for (; number > 127; number = Math.floor(number / 128)) out.push((number % 128) | 128);
  return Uint8Array.of(...out, number);
}

const field = (number, bytes) => joined([varint(number * 8 + 2), varint(bytes.length), bytes]);

// skeleton.onnx lacks its weights. Protobuf messages that follow each other are merged, so they can be appended.
function onnxFile(skeleton, tensors) {
  const initializers = Object.entries(tensors).map(([name, { shape, data }]) => {
    const dims = shape.map((side) => joined([Uint8Array.of(8), varint(side)]));
    const float32 = Uint8Array.of(0x10, 1);
    return field(5, joined([...dims, float32, field(8, utf8(name)), field(9, rawBytes(data))]));
  });
  return joined([skeleton, field(7, joined(initializers))]);
}

// The constants of layers, such as BatchNorm's counter, which are part of a state dict and not trained.
function withConstants(tensors, constants) {
  const out = { ...tensors };
  for (const [name, { dtype, shape, value }] of Object.entries(constants ?? {})) {
    const count = shape.reduce((a, b) => a * b, 1);
    out[name] = { shape, data: dtype === "I64" ? new BigInt64Array(count).fill(BigInt(value)) : new Float32Array(count).fill(value) };
  }
  return out;
}

// card.json of the personal model: that of the bases, and what was done here.
function modelCard(card, result, digest) {
  const { coding, ...plain } = card;
  const provenance = {
    bases: card.sha256,
    personalized_by: result.way,
    epochs: result.epochs,
    images: result.images,
    held_out: result.heldOut,
    before: result.before,
    after: result.after,
    label_counts: result.counts,
  };
  if (result.tried) provenance.tried = result.tried;
  return { ...plain, format: 1, kind: "model", settings: {}, provenance, learned: result.learned, sha256: digest };
}

function modelFiles(fit, state, skeleton, card, result) {
  const tensors = fit.tensors(state);
  const weights = writeTensors(withConstants(tensors, fit.about.constants));
  const text = JSON.stringify(modelCard(card, result, sha256(weights)), null, 1) + "\n";
  return { "model.onnx": onnxFile(skeleton, tensors), "tensors.safetensors": weights, "card.json": utf8(text) };
}
