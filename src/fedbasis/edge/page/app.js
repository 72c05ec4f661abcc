// The page: images are collected class by class, the worker fits, and the result is shown, tried and downloaded.
"use strict";

const embedded = (name) => document.querySelector(`script[data-file="${name}"]`)?.textContent ?? null;
const readJson = async (name) => JSON.parse(new TextDecoder().decode(await unpacked(embedded(name))));
const IMAGE = /\.(jpe?g|png|bmp|webp|gif|avif|tiff?)$/i;
const MOST_WASM = 4e9; // bytes that WebAssembly can address
const MOST_JUDGED = 60; // images that the result shows

// The worker as a function: ask("fit", {...}) -> a promise of the answer.
function startWorker() {
  const place = URL.createObjectURL(new Blob([embedded("worker.js")], { type: "text/javascript" }));
  const worker = new Worker(place);
  const waiting = new Map();
  let number = 0;
  worker.onmessage = ({ data: { id, done, wrong, progress } }) => {
    const { resolve, reject, onProgress } = waiting.get(id);
    if (progress) return onProgress?.(progress);
    waiting.delete(id);
    return wrong === undefined ? resolve(done) : reject(new Error(wrong));
  };
  worker.onerror = (event) => {
    for (const { reject } of waiting.values()) reject(new Error(event.message || "The worker could not be started."));
    waiting.clear();
  };
  return (ask, about = {}, onProgress = null) => new Promise((resolve, reject) => {
    number += 1;
    if (ask !== "stop") waiting.set(number, { resolve, reject, onProgress });
    worker.postMessage({ id: number, ask, ...about });
  });
}

// Names are compared by code points, as Python sorts a folder's names.
function byName(a, b) {
  const [one, two] = [Array.from(a, (c) => c.codePointAt(0)), Array.from(b, (c) => c.codePointAt(0))];
  const at = one.findIndex((value, i) => value !== two[i]);
  return at < 0 ? one.length - two.length : one[at] - (two[at] ?? -1);
}

class App {
  constructor(about, card, page, ask) {
    Object.assign(this, { about, card, page, ask, classes: card.classes, images: [], next: 0, reading: 0, additions: 0, fitting: false, target: 0 });
    this.result = null;
    this.urls = [];
    this.touch = matchMedia("(pointer: coarse)").matches;
    document.documentElement.classList.toggle("touch", this.touch);
    this.introduce();
    this.makeClasses();
    if (page.draw) this.makeDrawing();
    this.connect();
    this.update();
  }

  introduce() {
    const names = this.classes.length > 12 ? `${this.classes.slice(0, 10).join(", ")} …` : this.classes.join(", ");
    find("about").textContent = `${plural(this.classes.length, "class", "classes")}: ${names}.`;
    const { enough } = this.page.hold_out;
    find("advice").textContent = `Two classes are enough to begin; five or more images of a class are better. From ${enough} images on, a fifth is held out to measure the accuracy. The small pictures below are what the model sees.`;
    const canFolder = "webkitdirectory" in find("folder") && !this.touch; // few phones can choose a folder
    find("folder-label").hidden = find("folder-hint").hidden = !canFolder;
    if (this.page.examples) {
      const button = find("examples");
      button.hidden = false;
      button.textContent = `Use ${plural(this.page.examples, "example image")}`;
    }
  }

  // One card per class: its images, and ways to add some.
  makeClasses() {
    this.cards = this.classes.map((name, label) => {
      const file = (capture) => {
        const input = element("input", { type: "file", accept: "image/*", className: "hidden-input", multiple: !capture, capture: capture ? "environment" : null,
          "aria-label": `${capture ? "Take a photo" : "Add photos"} of class ${name}` });
        input.addEventListener("change", () => {
          this.addFiles([...input.files].map((one) => ({ file: one, name: one.name, label })));
          input.value = "";
        });
        const text = this.page.draw ? ["Photos", "Camera"] : ["Add photos", "Take a photo"]; // beside "Draw" there is less room
        return element("label", { className: `button small${capture ? " camera" : ""}` }, input, text[Number(capture)]);
      };
      const count = element("span", { className: "count tabular" });
      const thumbs = element("ul", { className: "thumbs", "aria-label": `Images of class ${name}` });
      const buttons = element("div", { className: "row" }, file(false), file(true));
      if (this.page.draw) {
        const draw = element("button", { type: "button", className: "small", text: "Draw", "aria-label": `Draw an image of class ${name}` });
        draw.addEventListener("click", () => {
          this.aim(label);
          find("draw-canvas").scrollIntoView({ block: "nearest", behavior: "smooth" });
        });
        buttons.prepend(draw);
      }
      const card = element("li", { className: "class" }, element("div", { className: "title" }, element("h3", { text: name }), count), thumbs, buttons);
      card.addEventListener("dragover", (event) => {
        event.preventDefault();
        card.classList.add("over");
      });
      card.addEventListener("dragleave", () => card.classList.remove("over"));
      card.addEventListener("drop", (event) => {
        event.preventDefault();
        card.classList.remove("over");
        this.addFiles([...event.dataTransfer.files].map((one) => ({ file: one, name: one.name, label })));
      });
      return { card, count, thumbs };
    });
    find("classes").append(...this.cards.map(({ card }) => card));
  }

  makeDrawing() {
    find("draw").hidden = false;
    find("collect").classList.add("drawing");
    this.pad = new Pad(find("draw-canvas"), { changed: () => this.update() });
    PENS.forEach((colors, i) => {
      const input = element("input", { type: "radio", name: "pen", checked: i === 0, "aria-label": colors.name });
      const swatch = element("span", { text: "8", title: colors.name, "aria-hidden": "true" });
      Object.assign(swatch.style, { background: colors.paper, color: colors.pen });
      input.addEventListener("change", () => {
        this.pad.use(colors);
        this.tryPad.use(colors);
        this.update();
      });
      find("draw-colors").append(element("label", {}, input, swatch));
    });
    find("draw-add").addEventListener("click", () => this.addDrawing(this.target));
    find("draw-clear").addEventListener("click", () => {
      this.pad.clear();
      this.update();
    });
    // A class whose name is one key: press it to add the drawing.
    find("draw-keys").hidden = this.touch || !this.classes.every((name) => [...name].length === 1);
    document.addEventListener("keydown", (event) => {
      const label = this.classes.indexOf(event.key);
      const elsewhere = event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select");
      if (label >= 0 && !elsewhere && !this.pad.empty) this.addDrawing(label);
    });
    find("try-canvas").hidden = find("try-clear").hidden = false;
    let last = 0;
    const guess = () => {
      last = performance.now();
      this.guess({ drawn: this.tryPad.drawn() });
    };
    // While a line is drawn the guess follows, as quickly as the worker answers.
    this.tryPad = new Pad(find("try-canvas"), {
      changed: () => { if (performance.now() - last > 120 && !this.guessing) guess(); },
      ended: guess,
    });
    find("try-clear").addEventListener("click", () => {
      this.tryPad.clear();
      this.forget();
    });
    this.aim(0);
  }

  connect() {
    find("folder").addEventListener("change", (event) => {
      this.addFolder([...event.target.files]);
      event.target.value = "";
    });
    find("examples").addEventListener("click", () => this.addExamples());
    find("clear").addEventListener("click", () => this.clearAll());
    find("fit").addEventListener("click", () => this.fit());
    find("stop").addEventListener("click", () => this.ask("stop"));
    for (const id of ["try-file", "try-camera"]) {
      find(id).addEventListener("change", (event) => {
        const [file] = event.target.files;
        if (file) this.guess({ file }, true);
        event.target.value = "";
      });
    }
    find("send").addEventListener("click", () => this.send());
  }

  aim(label) {
    this.target = label;
    find("draw-class").textContent = this.classes[label];
    this.cards.forEach(({ card }, i) => card.classList.toggle("aimed", i === label));
  }

  async addDrawing(label) {
    if (this.pad.empty) return;
    const drawn = this.pad.drawn();
    this.pad.clear();
    const number = String(this.next + 1).padStart(4, "0");
    const counts = this.counts();
    counts[label] += 1;
    const order = counts.map((_, i) => (label + 1 + i) % counts.length); // the next class that has the fewest
    this.aim(order.find((i) => counts[i] === Math.min(...counts)));
    await this.add([{ drawn, name: `drawing ${number}.png`, label }]);
  }

  // Files of a folder <class>/<image>, as the browser lists them.
  addFolder(files) {
    const [chosen, unknown] = [[], new Set()];
    for (const file of files) {
      const parts = file.webkitRelativePath.split("/");
      if (!IMAGE.test(file.name) || parts.some((part) => part.startsWith("."))) continue;
      const label = this.classes.indexOf(parts.at(-2));
      if (label < 0) unknown.add(parts.at(-2));
      else chosen.push({ file, name: file.name, label });
    }
    const problems = [];
    if (unknown.size) {
      const some = [...unknown].slice(0, 3).map((name) => `“${name}”`).join(", ");
      problems.push(`A folder's name must be one of the classes, but ${some}${unknown.size > 3 ? " and others" : ""} is not; rename it, or add its images to a class below.`);
    }
    if (!chosen.length && !unknown.size) problems.push("The folder must hold images as <class>/<image>, but it has none; choose the folder that holds the folders of the classes.");
    return this.add(chosen, problems);
  }

  addFiles(files) {
    return this.add(files);
  }

  async addExamples() {
    const examples = await readJson("examples.json");
    const chosen = examples.map(({ name, label, data }) => ({ file: new Blob([fromBase64(data)]), name, label }));
    find("examples").disabled = true;
    await this.add(chosen);
  }

  // Let the worker read images one after the other; what cannot be read is listed.
  async add(some, problems = []) {
    this.reading += some.length;
    this.update();
    for (const { name, label, ...source } of some) {
      const key = this.next;
      this.next += 1;
      try {
        const { seen } = await this.ask("read", { key, ...source });
        const image = { key, name, label, seen };
        this.images.push(image);
        this.showImage(image);
      } catch (error) {
        problems.push(`${name} is left out: ${error.message}.`);
      }
      this.reading -= 1;
      this.update();
    }
    const shown = problems.slice(0, 5);
    if (problems.length > 5) shown.push(`… and ${problems.length - 5} more.`);
    find("skipped").hidden = !problems.length;
    find("skipped").textContent = shown.join(" ");
    this.additions += 1;
  }

  showImage(image) {
    const { thumbs } = this.cards[image.label];
    const name = this.classes[image.label];
    const remove = element("button", { type: "button", text: "×", title: "Remove", "aria-label": `Remove ${image.name} of class ${name}` });
    image.item = element("li", { title: image.name }, paint(element("canvas", { role: "img", "aria-label": image.name }), image.seen), remove);
    remove.addEventListener("click", () => {
      const next = image.item.nextElementSibling ?? image.item.previousElementSibling;
      this.remove(image);
      next?.querySelector("button").focus(); // the keyboard stays where it was
    });
    thumbs.append(image.item);
  }

  remove(image) {
    this.images = this.images.filter((other) => other !== image);
    image.item.remove();
    this.ask("remove", { key: image.key });
    this.update();
  }

  clearAll() {
    for (const image of [...this.images]) this.remove(image);
    find("examples").disabled = false;
    find("skipped").hidden = true;
    find("images-title").scrollIntoView({ block: "nearest" });
  }

  counts() {
    return this.classes.map((_, label) => this.images.filter((image) => image.label === label).length);
  }

  // What must still be done before the model can be fitted; empty if nothing.
  missing(counts) {
    const classes = counts.filter(Boolean).length;
    if (!this.opened) return "Preparing the runtime …";
    if (this.reading) return `Reading images, ${this.reading} to go …`;
    if (classes === 0) return "Add images of at least 2 classes.";
    if (classes === 1) return `Images of at least 2 classes are needed, but all ${this.images.length === 1 ? "1 image is" : `${this.images.length} images are`} of “${this.classes[counts.findIndex(Boolean)]}”; add images of another class.`;
    return "";
  }

  update() {
    const counts = this.counts();
    this.cards.forEach(({ card, count }, label) => {
      count.textContent = counts[label] ? plural(counts[label], "image") : "";
      card.classList.toggle("filled", counts[label] > 0);
    });
    const missing = this.missing(counts);
    const text = missing || (this.fitting ? "" : `${plural(this.images.length, "image")} of ${plural(counts.filter(Boolean).length, "class", "classes")}: ready.`);
    if (find("ready").textContent !== text) find("ready").textContent = text;
    find("fit").disabled = Boolean(missing) || this.fitting || this.refused;
    find("clear").hidden = !this.images.length;
    if (this.pad) find("draw-add").disabled = find("draw-clear").disabled = this.pad.empty;
    const keys = (images) => images.map((image) => image.key).join();
    find("outdated").hidden = this.fitting || !this.result || keys(this.images) === this.result.keys;
  }

  async fit() {
    this.fitting = true;
    this.update();
    const rows = [...this.images].sort((a, b) => byName(this.classes[a.label], this.classes[b.label]) || byName(a.name, b.name) || a.key - b.key);
    const keys = this.images.map((image) => image.key).join();
    const began = performance.now();
    const losses = [];
    find("working").hidden = find("stop").hidden = false;
    find("result").hidden = false;
    find("scores").hidden = true;
    for (const id of ["try", "take"]) find(id).hidden = true;
    find("spoken").textContent = "Fitting has begun.";
    const progress = ({ share, epoch, epochs, loss, alpha }) => {
      find("bar").value = share;
      const left = ((performance.now() - began) / share) * (1 - share) / 1000;
      find("now").textContent = `Epoch ${epoch} of ${epochs}${losses.length ? `, loss ${losses.at(-1).toFixed(3)}` : ""}${share < 1 ? `, about ${Math.ceil(left)} s to go` : ""}`;
      if (loss === undefined) return;
      losses.push(loss);
      showAlpha(find("alpha"), this.about.blocks, alpha);
      showLosses(find("losses"), losses, epochs);
      if (epoch % 5 === 0 && epoch < epochs) find("spoken").textContent = `Epoch ${epoch} of ${epochs}.`;
    };
    find("trouble").hidden = true;
    try {
      const result = await this.ask("fit", { rows: rows.map(({ key, label }) => ({ key, label })) }, progress);
      if (result.stopped) {
        find("spoken").textContent = "Stopped.";
        find("result").hidden = !this.result;
        if (this.result) this.show();
      } else {
        this.result = { ...result, keys, seconds: (performance.now() - began) / 1000, images: result.images };
        this.show();
        find("result-title").focus({ preventScroll: true });
        find("result").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      }
    } catch (error) {
      find("result").hidden = true;
      this.trouble(`Fitting failed: ${error.message}`);
    }
    this.fitting = false;
    find("working").hidden = find("stop").hidden = true;
    this.update();
  }

  show() {
    const { way, before, after, heldOut, images, epochs, tried, alpha, losses, judged, files, seconds, counts } = this.result;
    const { enough } = this.page.hold_out;
    for (const id of ["scores", "try", "take"]) find(id).hidden = false;
    find("before").textContent = percent(before);
    find("after").textContent = percent(after);
    const on = heldOut ? plural(heldOut, "held-out image") : `the ${plural(images, "training image")} (fewer than ${enough}: none held out)`;
    const how = way === "none" ? "" : ` after ${plural(epochs, "epoch")} on ${plural(images, "image")}`;
    const sentence = way === "none" ? `Accuracy on ${on}: ${percent(before)}, by the model without personalization.` : `Accuracy on ${on}: ${percent(before)} before, ${percent(after)}${how}.`;
    find("sentence").textContent = `${sentence} It took ${seconds.toFixed(1)} s.`;
    find("spoken").textContent = `Done. ${sentence}`;
    find("guard").hidden = !tried;
    if (tried) {
      find("guard").textContent = `The personalized model was worse on these images (${percent(tried["coefficients+classifier"])}) than the one it started from (${percent(before)}), so you get the model without personalization. More images, or clearer ones, may help.`;
    }
    const notes = [];
    if (heldOut && heldOut < enough) notes.push(`${plural(heldOut, "image")} measure an accuracy in steps of ${(100 / heldOut).toFixed(0)} points.`);
    if (!heldOut) notes.push(`On images that a model was fitted to, its accuracy is too high; from ${enough} images on, some are held out.`);
    if (!tried && after <= before) notes.push("The personal model is not better on these images than the one it started from.");
    find("notes").textContent = notes.join(" ");
    const unseen = this.classes.filter((_, label) => !counts[label]);
    const some = unseen.length > 10 ? `${unseen.slice(0, 10).join(", ")} …` : unseen.join(", ");
    find("unseen").textContent = unseen.length && way !== "none" ? `It was fitted without images of ${some}, so it will hardly say ${unseen.length === 1 ? "this class" : "these classes"}.` : "";
    find("judged-title").textContent = heldOut ? "Held-out images" : "The images it was fitted to";
    find("judged-note").textContent = `In bold the class of an image; below it what the model says${way === "none" ? "" : ", before → after"}.${judged.length > MOST_JUDGED ? ` The first ${MOST_JUDGED} of ${judged.length}.` : ""}`;
    find("judged").replaceChildren(...judged.slice(0, MOST_JUDGED).map((one) => this.verdict(one, way)));
    showAlpha(find("alpha"), this.about.blocks, alpha);
    find("alpha-note").textContent = tried ? "These were learned and are not used, see above." : this.about.major ? "Half of every block is the basis that all clients share; the other half is divided as shown." : "";
    showLosses(find("losses"), losses, losses.length);
    this.offer(files);
    this.forget();
  }

  // One judged image: its true class, and what the models before and after say.
  verdict({ key, label, before, after }, way) {
    const image = this.images.find((one) => one.key === key);
    const last = way === "none" ? before : after;
    const right = last === label;
    const item = element("li", { className: right ? "right" : "wrong" });
    if (image) item.append(paint(element("canvas", { "aria-hidden": "true" }), image.seen));
    const change = way === "none" ? this.classes[before] : `${this.classes[before]} → ${this.classes[last]}`;
    item.append(element("b", { text: this.classes[label] }), element("span", { text: `${change} ${right ? "✓" : "✗"}`, "aria-hidden": "true" }));
    const spoken = `class ${this.classes[label]}; before: ${this.classes[before]}, after: ${this.classes[last]}, ${right ? "right" : "wrong"}`;
    item.append(element("span", { className: "sr-only", text: spoken }));
    item.title = spoken;
    return item;
  }

  offer(files) {
    this.urls.forEach((url) => URL.revokeObjectURL(url));
    const { "model.onnx": onnx, "card.json": card, "tensors.safetensors": tensors } = files;
    const all = { "model.onnx": onnx, "model.zip": zip({ "model/card.json": card, "model/tensors.safetensors": tensors }), "card.json": card, "tensors.safetensors": tensors };
    const links = Object.entries(all).map(([name, bytes], i) => {
      const url = URL.createObjectURL(new Blob([bytes], { type: "application/octet-stream" }));
      return element("a", { href: url, download: name, className: `button${i === 0 ? " main" : i > 1 ? " small quiet-button" : ""}`, text: `${name} (${size(bytes.length)})` });
    });
    this.urls = links.map((link) => link.href);
    find("downloads").replaceChildren(...links);
  }

  // Ask both models about an image: a file, or what is drawn.
  async guess(source, show = false) {
    this.guessing = true;
    try {
      const { seen } = await this.ask("read", { key: "try", ...source });
      const { before, after } = await this.ask("predict", { key: "try" });
      const best = largest(after);
      find("guess").textContent = `${this.classes[best]}, ${percent(after[best], 0)}`;
      find("chances-note").hidden = false;
      showChances(find("chances"), this.classes, before, after);
      find("try-seen").hidden = !show;
      if (show) paint(find("try-seen"), seen);
    } catch (error) {
      this.forget();
      find("guess").textContent = `The image cannot be used: ${error.message}.`;
    }
    this.guessing = false;
  }

  forget() {
    find("chances").replaceChildren();
    find("chances-note").hidden = find("try-seen").hidden = true;
    find("guess").textContent = this.page.draw ? "Draw something, or choose a photo." : "Choose a photo that the model has not seen.";
  }

  async send() {
    const address = "https://example.invalid/"; // a name that belongs to nobody
    const tries = [await trySending(address), await this.ask("send", { address })];
    const refused = tries.every(({ went, by }) => !went && by === "connect-src");
    find("sent").textContent = refused ? "Refused by the policy (connect-src), for the page and for its worker. ✓" : "It was not refused by the policy: this browser does not enforce it.";
  }

  trouble(text) {
    find("trouble").textContent = text;
    find("trouble").hidden = false;
  }
}

// What a browser must have; returns a sentence if something is missing.
function lacking(about) {
  const needed = { Worker: "workers", WebAssembly: "WebAssembly", OffscreenCanvas: "OffscreenCanvas", createImageBitmap: "createImageBitmap", DecompressionStream: "DecompressionStream" };
  const names = Object.entries(needed).filter(([name]) => !(name in self)).map(([, name]) => name);
  if (names.length) return `This page needs ${names.join(", ")}, which this browser lacks; use a newer one (Chrome or Edge 90, Firefox 113, Safari 16.4, or later).`;
  const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
  const memory = about.memory ?? 0;
  const device = navigator.deviceMemory ? navigator.deviceMemory * 2 ** 30 : Infinity; // not every browser tells
  if (memory > Math.min(MOST_WASM, device)) {
    return `Fitting this model needs ${gigabytes(memory)} of memory, but ${memory > MOST_WASM ? `a browser can use ${gigabytes(MOST_WASM)}` : `this device has about ${gigabytes(device)}`}; use fedbasis personalize on a larger machine.`;
  }
  return "";
}

// Light or dark: as the system says until the reader chooses; the choice is kept where the browser allows it.
function themes() {
  const [root, toggle] = [document.documentElement, find("theme")];
  const kept = (choice) => {
    try {
      if (choice) localStorage.setItem("fedbasis-theme", choice);
      return localStorage.getItem("fedbasis-theme");
    } catch {
      return null;
    }
  };
  const use = (theme) => {
    root.dataset.theme = theme;
    toggle.textContent = theme === "dark" ? "Light" : "Dark";
  };
  use(kept() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    use(root.dataset.theme === "dark" ? "light" : "dark");
    kept(root.dataset.theme);
  });
}

async function main() {
  themes();
  const early = lacking({});
  if (early) {
    find("trouble").textContent = early;
    find("trouble").hidden = false;
    return;
  }
  const [about, card, page] = await Promise.all(["edge.json", "card.json", "page.json"].map(readJson));
  const ask = startWorker();
  const app = new App(about, card, page, ask);
  self.app = app; // for tests, and for the curious
  const late = lacking(about);
  if (late) {
    app.refused = true;
    app.trouble(late);
    return;
  }
  const files = {};
  for (const block of document.querySelectorAll("script[data-file]")) {
    const name = block.dataset.file;
    if (name === "bases" || name === "header" || /^runtime|\.onnx$/.test(name)) files[name] = block.textContent;
  }
  try {
    await ask("open", { files, about, cardOfBases: card, page });
    app.opened = true;
  } catch (error) {
    app.trouble(`The runtime could not be started: ${error.message}. Reload the page, or use another browser.`);
  }
  app.update();
}

main().catch((error) => {
  find("trouble").textContent = `This file is damaged (${error.message}); get it again.`;
  find("trouble").hidden = false;
});
