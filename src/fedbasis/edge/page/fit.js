// A new client's personalization: onnxruntime-web runs the training step, which is an ordinary inference graph.
"use strict";

const PASS = 256; // images of a forward pass that measures statistics, as fedbasis.networks.statistics has it
const MOST_MEMORY = 1.5e9; // bytes that such a pass may take, or it sees fewer images at once

class Fit {
  // ort: the module; files: the graphs and tensors.safetensors as bytes; about: edge.json
  static async open(ort, files, about) {
    const fit = new Fit();
    fit.ort = ort;
    fit.about = about;
    fit.bases = readTensors(files["tensors.safetensors"]);
    const settings = {
      executionProviders: ["wasm"],
      externalData: [{ path: "tensors.safetensors", data: files["tensors.safetensors"] }],
    };
    fit.stepGraph = await ort.InferenceSession.create(files["step.onnx"], settings);
    fit.applyGraph = await ort.InferenceSession.create(files["apply.onnx"], settings);
    const measure = files["statistics.onnx"];
    fit.measureGraph = measure ? await ort.InferenceSession.create(measure, settings) : null;
    fit.entries = [...about.entries].sort((a, b) => a.block - b.block); // flat vectors go block by block
    fit.plain = fit.start();
    fit.state = fit.plain;
    return fit;
  }

  // Nothing learned: equal coefficients, no offset, the combined statistics of the bases.
  start() {
    const state = { weight: new Float32Array(1) };
    for (const [name, shape] of Object.entries(this.about.state)) {
      state[name] = new Float32Array(shape.reduce((a, b) => a * b, 1));
    }
    if (this.about.statistics === "own" && state.statistics) state.statistics.set(this.combined(state, false));
    return state;
  }

  // alpha: how much of each basis, block by block.
  alpha(state) {
    const [blocks, count] = this.about.state.psi;
    return Array.from({ length: blocks }, (_, block) => {
      const row = [...state.psi.subarray(block * count, (block + 1) * count)];
      const top = Math.max(...row);
      const powers = row.map((value) => Math.exp(value - top));
      const sum = powers.reduce((a, b) => a + b);
      return powers.map((power) => power / sum);
    });
  }

  // The combination of the bases' parameters (or statistics), block by block.
  combined(state, trained) {
    const shares = this.alpha(state).map((row) => (this.about.major ? [0.5, ...row.map((value) => value / 2)] : row));
    const parts = this.entries.filter((entry) => entry.trained === trained).map(({ name, block }) => {
      const rows = this.about.groups.map((group) => this.bases[`${group}/${name}`].data);
      return Float32Array.from(rows[0], (_, i) => rows.reduce((sum, row, k) => sum + shares[block][k] * row[i], 0));
    });
    const flat = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
    parts.reduce((at, part) => (flat.set(part, at), at + part.length), 0);
    return flat;
  }

  // The statistics of the normalization layers: the client's own, those of the bases, or between them by a weight.
  statisticsOf(state) {
    if (this.about.statistics === "own" && state.statistics) return state.statistics;
    const flat = this.combined(state, false);
    return this.about.statistics === "shrunk" ? flat.map((value, i) => value + state.weight[0] * (state.statistics[i] - value)) : flat;
  }

  // The merged network by name: the combination, the offset of the classifier, the statistics.
  tensors(state) {
    const tensors = {};
    const [weights, statistics] = [this.combined(state, true), this.statisticsOf(state)];
    let [w, s, f] = [0, 0, 0];
    for (const { name, shape, block, trained } of this.entries) {
      const size = shape.reduce((a, b) => a * b, 1);
      const data = trained ? weights.slice(w, (w += size)) : statistics.slice(s, (s += size));
      if (trained && block === this.about.classifier) for (let i = 0; i < size; i++) data[i] += state.offset[f++];
      tensors[name] = { shape, data };
    }
    return tensors;
  }

  feeds(graph, state, images, more = {}) {
    const tensors = { ...more, pixels: this.pixels(images), weight: new this.ort.Tensor("float32", state.weight, []) };
    for (const [name, shape] of Object.entries(this.about.state)) tensors[name] = new this.ort.Tensor("float32", state[name], shape);
    return Object.fromEntries(graph.inputNames.map((name) => [name, tensors[name]]));
  }

  pixels(images) {
    return new this.ort.Tensor("uint8", joined(images), [images.length, ...this.about.resolution, this.about.channels]);
  }

  // One training step; returns the loss and the next state.
  async step(state, images, labels, rates = this.about.training.rates) {
    const out = await this.stepGraph.run(this.feeds(this.stepGraph, state, images, {
      labels: new this.ort.Tensor("int64", BigInt64Array.from(labels, BigInt), [labels.length]),
      rates: new this.ort.Tensor("float32", Float32Array.from(rates), [rates.length]),
    }));
    const next = Object.fromEntries(Object.keys(state).map((name) => [name, out[`${name}_out`]?.data ?? state[name]]));
    return { loss: out.loss.data[0], next };
  }

  // One row of logits an image.
  async logits(state, images) {
    const rows = [];
    for (let at = 0; at < images.length; at += 32) {
      const part = images.slice(at, at + 32);
      const { logits } = await this.applyGraph.run(this.feeds(this.applyGraph, state, part));
      const count = logits.data.length / part.length;
      for (let i = 0; i < part.length; i++) rows.push(logits.data.slice(i * count, (i + 1) * count));
    }
    return rows;
  }

  // The start of training. Unless they stay those of the bases, statistics are measured on the client's images, layer
  // after layer: up to 256 images are one pass, more are split evenly.
  async first(images) {
    const state = this.start();
    if (!this.measureGraph || images.length < 2) return state;
    const perImage = (this.about.memory || 1) / this.about.training.batch;
    const most = Math.max(2, Math.min(PASS, Math.floor(MOST_MEMORY / perImage)));
    const passes = Math.ceil(images.length / most);
    const mean = new Float64Array(state.statistics.length);
    for (let pass = 0, at = 0; pass < passes; pass++) {
      const stop = at + Math.floor(images.length / passes) + (pass < images.length % passes ? 1 : 0);
      const { statistics } = await this.measureGraph.run({ pixels: this.pixels(images.slice(at, stop)) });
      for (let i = 0; i < mean.length; i++) mean[i] += statistics.data[i] / passes;
      at = stop;
    }
    const weight = images.length / ((this.about.prior_images ?? 0) + images.length);
    return { ...state, statistics: Float32Array.from(mean), weight: Float32Array.of(weight) };
  }
}
