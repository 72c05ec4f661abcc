// One image becomes one array of pixels, exactly as PFLBed reads it with Pillow: upright by its EXIF orientation, on
// white, scaled by antialiased bicubic interpolation in whole numbers, the centre cropped.
"use strict";

const PRECISION = 22; // bits after the point of Pillow's weights
const MAX_PIXELS = 64 * 2 ** 20;

function bicubic(x) {
  const t = Math.abs(x);
  if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
  return t < 2 ? (((t - 5) * t + 8) * t - 4) * -0.5 : 0;
}

// For every output: the first input, and the weights of the inputs from there on.
function weightsAlong(size, start, stop, count) {
  const scale = Math.fround(stop - start) / count; // Pillow's box is of 32-bit floats
  const wide = Math.max(scale, 1);
  const support = 2 * wide;
  return Array.from({ length: count }, (_, i) => {
    const centre = start + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(size, Math.trunc(centre + support + 0.5));
    const weights = Array.from({ length: last - first }, (_, x) => bicubic((x + first - centre + 0.5) * (1 / wide)));
    const sum = weights.reduce((a, b) => a + b, 0);
    const whole = weights.map((weight) => {
      const exact = (sum ? weight / sum : weight) * 2 ** PRECISION;
      return Math.trunc(exact < 0 ? exact - 0.5 : exact + 0.5);
    });
    return { first, weights: Int32Array.from(whole) };
  });
}

const clipped = (sum) => Math.min(255, Math.max(0, sum >> PRECISION)); // |sum| < 2^31, as in Pillow

// The part of an image that has the output's shape, as ImageOps.fit chooses it: [left, top, right, bottom].
function centralBox(width, height, [tall, wide]) {
  const ratio = wide / tall;
  let [across, down] = [width, height];
  if (width / height > ratio) across = ratio * height;
  else if (width / height < ratio) down = width / ratio;
  const left = (width - across) * 0.5;
  const top = (height - down) * 0.5;
  return [left, top, left + across, top + down].map(Math.fround);
}

// Scale an array [height, width, step] along its rows, to [height, outputs, channels].
function scaledAcross(from, { height, width, step }, channels, outputs) {
  const out = new Uint8Array(height * outputs.length * channels);
  for (let y = 0, to = 0; y < height; y++) {
    for (const { first, weights } of outputs) {
      for (let c = 0; c < channels; c++) {
        let sum = 2 ** (PRECISION - 1);
        let at = (y * width + first) * step + c;
        for (let x = 0; x < weights.length; x++, at += step) sum += weights[x] * from[at];
        out[to++] = clipped(sum);
      }
    }
  }
  return out;
}

// Scale an array [height, width, step] along its columns, to [outputs, width, step].
function scaledDown(from, { width, step }, outputs) {
  const line = width * step;
  const out = new Uint8Array(outputs.length * line);
  const sums = new Int32Array(line); // row after row, as the memory lies
  outputs.forEach(({ first, weights }, j) => {
    sums.fill(2 ** (PRECISION - 1));
    for (let y = 0; y < weights.length; y++) {
      const start = (first + y) * line;
      for (let i = 0; i < line; i++) sums[i] += weights[y] * from[start + i];
    }
    for (let i = 0; i < line; i++) out[j * line + i] = clipped(sums[i]);
  });
  return out;
}

// RGBA bytes -> one byte a channel, [height, width, channels]. Both directions are rounded, so their order counts: up to
// Pillow 12 it was across, then down; Pillow 13 turns it around for images that shrink much more in height.
function fitted(rgba, width, height, [tall, wide], channels, newPillow) {
  const [left, top, right, bottom] = centralBox(width, height, [tall, wide]);
  const across = weightsAlong(width, left, right, wide);
  const down = weightsAlong(height, top, bottom, tall);
  const step = channels === 1 ? 1 : 4;
  const whole = channels === 1 ? gray(rgba) : rgba;
  if (newPillow && height > tall && height - tall > 2 * (width - wide)) {
    const between = scaledDown(whole, { width, step }, down);
    return scaledAcross(between, { height: tall, width, step }, channels, across);
  }
  const from = down[0].first; // rows above and below the box are not needed
  const to = down.at(-1).first + down.at(-1).weights.length;
  const rows = whole.subarray(from * width * step, to * width * step);
  const between = scaledAcross(rows, { height: to - from, width, step }, channels, across);
  return scaledDown(between, { width: wide, step: channels }, down.map(({ first, weights }) => ({ first: first - from, weights })));
}

// Pillow's conversion from RGB to gray.
function gray(rgba) {
  const out = new Uint8Array(rgba.length / 4);
  for (let i = 0; i < out.length; i++) {
    out[i] = (rgba[4 * i] * 19595 + rgba[4 * i + 1] * 38470 + rgba[4 * i + 2] * 7471 + 0x8000) >>> 16;
  }
  return out;
}

// The RGBA bytes of an image file at its own size.
async function decoded(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error("this browser cannot read it as an image");
  }
  const { width, height } = bitmap;
  if (width * height > MAX_PIXELS) throw new Error(`it must have at most ${MAX_PIXELS.toLocaleString("en")} pixels, but it has more; scale it down`);
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}
