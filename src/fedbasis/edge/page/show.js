// Pieces of the page that show numbers: made with textContent only, as names of classes come from strangers' files.
"use strict";

const find = (id) => document.getElementById(id);

function element(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "className") made.className = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)} %`;
const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

function size(bytes) {
  return bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function paint(canvas, { data, width, height }) {
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(data, width, height), 0, 0);
  return canvas;
}

// The coefficients as bars, as `fedbasis personalize` prints them; called again, the bars move.
function showAlpha(table, blocks, rows) {
  if (table.rows.length !== rows.length + 1) {
    const head = element("tr", {}, element("th", { text: "block", scope: "col" }), ...rows[0].map((_, k) => element("th", { text: `basis ${k}`, scope: "col" })));
    const body = rows.map((row, b) => element("tr", {}, element("th", { text: blocks[b], scope: "row" }), ...row.map(() => {
      const bar = element("span", { className: "bar", "aria-hidden": "true" }, element("i"));
      return element("td", {}, bar, element("span", { className: "tabular" }));
    })));
    table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
  }
  rows.forEach((row, b) => row.forEach((value, k) => {
    const cell = table.tBodies[0].rows[b].cells[k + 1];
    cell.querySelector("i").style.width = percent(value, 2).replace(" ", "");
    cell.lastChild.textContent = value.toFixed(2);
  }));
}

// The training loss as a curve.
function showLosses(svg, losses, epochs) {
  const [width, height, left, right, top, bottom] = [320, 130, 34, 8, 10, 22];
  const high = Math.max(...losses) || 1;
  const x = (epoch) => left + ((epoch - 1) / Math.max(1, epochs - 1)) * (width - left - right);
  const y = (loss) => top + (1 - loss / high) * (height - top - bottom);
  const part = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const points = losses.map((loss, i) => `${x(i + 1).toFixed(1)},${y(loss).toFixed(1)}`);
  const end = points.at(-1).split(",");
  svg.replaceChildren(
    part("line", { x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, class: "axis" }),
    part("text", { x: left - 5, y: top + 4, "text-anchor": "end" }, high.toFixed(2)),
    part("text", { x: left - 5, y: height - bottom + 4, "text-anchor": "end" }, "0"),
    part("text", { x: left, y: height - 6 }, "1"),
    part("text", { x: width - right, y: height - 6, "text-anchor": "end" }, String(epochs)),
    part("polyline", { points: points.join(" "), class: "curve" }),
    part("circle", { cx: end[0], cy: end[1], r: 3.5, class: "end" }));
  svg.setAttribute("aria-label", `Training loss: ${losses[0].toFixed(2)} in the first epoch, ${losses.at(-1).toFixed(2)} in epoch ${losses.length}`);
}

// The classes of highest probability, by the personal model and by the one before.
function showChances(list, classes, before, after) {
  const rows = classes.map((name, i) => ({ name, before: before[i], after: after[i] }));
  if (rows.length > 10) {
    rows.sort((a, b) => b.after - a.after);
    rows.length = 6;
  }
  const top = Math.max(...rows.map((row) => row.after));
  if (list.children.length !== rows.length) {
    list.replaceChildren(...rows.map(() => element("li", {}, element("span", { className: "name" }),
      element("span", { className: "chance", "aria-hidden": "true" }, element("i"), element("u")), element("span", { className: "value tabular" }))));
  }
  rows.forEach((row, i) => {
    const line = list.children[i];
    line.classList.toggle("top", row.after === top);
    line.querySelector(".name").textContent = row.name;
    line.querySelector("i").style.width = `${100 * row.after}%`;
    line.querySelector("u").style.width = `${100 * row.before}%`;
    line.querySelector(".value").textContent = percent(row.after, row.after > 0.995 || row.after < 0.005 ? 1 : 0);
    line.title = `${row.name}: ${percent(row.after)}, before ${percent(row.before)}`;
  });
}
