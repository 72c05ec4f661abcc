// The worker: everything that takes long happens here, so that the page never freezes. It reads images, fits, predicts,
// and writes the model. It is asked by messages {id, ask, ...} and answers {id, done} or {id, wrong}.
"use strict";

const WAY = "coefficients+classifier";
const images = new Map(); // pixels of the images by their key
let [fit, card, settings, skeleton, learned] = [null, null, null, null, null];
let stopped = false;
let queue = Promise.resolve();

const asked = {
  // Unpack what is embedded and let the runtime read the graphs.
  async open({ files, about, cardOfBases, page }) {
    [card, settings] = [cardOfBases, page];
    const open = {};
    for (const [name, text] of Object.entries(files)) open[name] = await unpacked(text);
    skeleton = open["skeleton.onnx"];
    open["tensors.safetensors"] = open.header ? decodeBases(open.bases, open.header) : open.bases;
    const place = URL.createObjectURL(new Blob([open["runtime.mjs"]], { type: "text/javascript" }));
    const ort = await import(place);
    URL.revokeObjectURL(place);
    ort.env.logLevel = "error";
    ort.env.wasm.numThreads = 1; // more need headers that a file on a disk cannot have
    ort.env.wasm.wasmBinary = open["runtime.wasm"].buffer;
    fit = await Fit.open(ort, open, about);
    return {};
  },

  // Read one image, from a file or as RGBA bytes, and return what the model sees of it.
  async read({ key, file, drawn }) {
    const { data, width, height } = drawn ?? (await decoded(file));
    const pixels = fitted(data, width, height, fit.about.resolution, fit.about.channels, settings.new_pillow);
    images.set(key, pixels);
    return { seen: shown(pixels) };
  },

  remove({ key }) {
    images.delete(key);
    return {};
  },

  async fit({ rows }, progress) {
    stopped = false;
    const result = await personalize(rows, progress);
    if (!result) return { stopped: true };
    learned = result.state;
    const files = modelFiles(fit, result.state, skeleton, card, result);
    const { state, ...summary } = result;
    return { ...summary, files };
  },

  // Class probabilities of one image that was read, by the personal model and by the one it started from.
  async predict({ key }) {
    const chosen = [images.get(key)];
    const before = softmax((await fit.logits(fit.plain, chosen))[0]);
    return { before, after: learned ? softmax((await fit.logits(learned, chosen))[0]) : null };
  },

  // Try to send something from here too; the policy of the page holds for its worker.
  send: ({ address }) => trySending(address),
};

// RGBA bytes of pixels, for a canvas.
function shown(pixels) {
  const channels = fit.about.channels;
  const [height, width] = fit.about.resolution;
  const data = new Uint8ClampedArray(height * width * 4).fill(255);
  for (let i = 0; i < height * width; i++) for (let c = 0; c < 3; c++) data[4 * i + c] = pixels[i * channels + (channels === 1 ? 0 : c)];
  return { data, width, height };
}

function softmax(row) {
  const top = Math.max(...row);
  const powers = Array.from(row, (value) => Math.exp(value - top));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

// A message can only be read between two tasks.
const breath = () => new Promise((done) => { setTimeout(done); });

const share = (labels, guesses) => guesses.filter((guess, i) => guess === labels[i]).length / labels.length;

// rows: [{key, label}] in the order in which `fedbasis personalize` would read them from a folder.
async function personalize(rows, progress) {
  const { epochs, batch } = fit.about.training;
  const labels = rows.map(({ label }) => label);
  const held = heldOut(labels, settings.hold_out);
  const kept = rows.filter((_, i) => !held[i]);
  const judged = held.some(Boolean) ? rows.filter((_, i) => held[i]) : kept;
  const pixelsOf = (some) => some.map(({ key }) => images.get(key));
  const labelsOf = (some) => some.map(({ label }) => label);
  const guesses = async (state) => (await fit.logits(state, pixelsOf(judged))).map(largest);

  const guessedBefore = await guesses(fit.plain);
  const before = share(labelsOf(judged), guessedBefore);
  let state = await fit.first(pixelsOf(kept));
  const generator = new Twister(settings.adapt);
  const losses = [];
  for (let epoch = 1; epoch <= epochs; epoch++) {
    const parts = batches(kept.length, batch, generator);
    let sum = 0;
    for (const [number, part] of parts.entries()) {
      const some = part.map((row) => kept[row]);
      const { loss, next } = await fit.step(state, pixelsOf(some), labelsOf(some));
      sum += loss;
      state = next;
      progress({ share: (epoch - 1 + (number + 1) / parts.length) / epochs, epoch, epochs });
      await breath();
      if (stopped) return null;
    }
    losses.push(sum / parts.length);
    progress({ share: epoch / epochs, epoch, epochs, loss: losses.at(-1), alpha: fit.alpha(state) });
  }
  for (const name of ["psi", "offset", "statistics"]) {
    if (state[name]?.some((value) => !Number.isFinite(value))) throw new Error("The personal model must hold finite numbers, but training diverged; use other images.");
  }
  const guessedAfter = await guesses(state);
  const after = share(labelsOf(judged), guessedAfter);
  // The guard rail: a client never leaves with a model that is worse on its own images than the one it started from.
  const worse = after < before;
  const alpha = fit.alpha(state);
  const columns = alpha[0].map((_, basis) => `basis ${basis}`);
  const table = {
    title: "Coefficients: how much of each basis, block by block",
    columns,
    rows: alpha.map((row, block) => [fit.about.blocks[block], row.map((value) => Math.round(value * 1e4) / 1e4)]),
    shares: true,
  };
  return {
    state: worse ? fit.plain : state,
    way: worse ? "none" : WAY,
    epochs: worse ? 1 : epochs, // as `fedbasis personalize --how none` counts
    images: kept.length,
    heldOut: held.filter(Boolean).length,
    before,
    after: worse ? before : after,
    tried: worse ? { none: before, [WAY]: after } : null,
    counts: card.classes.map((_, label) => labels.filter((other) => other === label).length),
    learned: worse ? {} : { alpha: table },
    losses,
    alpha,
    judged: judged.map(({ key, label }, i) => ({ key, label, before: guessedBefore[i], after: guessedAfter[i] })),
  };
}

self.onmessage = ({ data: { id, ask, ...about } }) => {
  if (ask === "stop") {
    stopped = true;
    return;
  }
  queue = queue.then(async () => {
    try {
      const done = await asked[ask](about, (now) => self.postMessage({ id, progress: now }));
      self.postMessage({ id, done });
    } catch (error) {
      self.postMessage({ id, wrong: String(error?.message ?? error) });
    }
  });
};
