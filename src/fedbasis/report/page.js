// What a reader can do: sort a table by any column, switch between light and dark, save a figure or a table as a file.
const slug = (text) => text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 80);

// Sort a table by the column whose heading is pressed; cells without a number stay at the end.
document.querySelectorAll("table.sortable").forEach((table) => {
  const headings = table.querySelectorAll("thead tr:last-child th");
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    if (!button.textContent) button.setAttribute("aria-label", "name");
    heading.append(button);
    button.addEventListener("click", () => {
      const first = column === 0 ? "ascending" : "descending";
      const other = column === 0 ? "descending" : "ascending";
      const way = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach((h) => h.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", way);
      const sign = way === "ascending" ? 1 : -1;
      const value = (row) => parseFloat(row.cells[column].dataset.value);
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        if (column === 0) return sign * a.cells[0].textContent.localeCompare(b.cells[0].textContent);
        const x = value(a), y = value(b);
        if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
        return sign * (x - y);
      });
      table.tBodies[0].append(...rows);
    });
  });
});

// Light or dark: as the system says until the reader chooses; the choice is kept where the browser allows it.
const root = document.documentElement;
const toggle = document.getElementById("theme");
const kept = (choice) => {
  try {
    if (choice) localStorage.setItem("fedbasis-theme", choice);
    return localStorage.getItem("fedbasis-theme");
  } catch {
    return null;
  }
};
const show = (theme) => {
  root.dataset.theme = theme;
  toggle.textContent = theme === "dark" ? "Light" : "Dark";
};
show(kept() || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
toggle.hidden = false;
toggle.addEventListener("click", () => {
  show(root.dataset.theme === "dark" ? "light" : "dark");
  kept(root.dataset.theme);
});

// Save: the file is made from the page itself, so it works without a network and from a local file.
const saver = (place, ending, kind, name, content) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "save";
  button.textContent = ending;
  button.setAttribute("aria-label", `Save as ${ending}: ${name}`);
  button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content()], { type: kind }));
    link.download = `${slug(name)}.${ending}`;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });
  place.append(button);
};

const [INK, QUIET, PAPER] = ["#1c2128", "#56606d", "#ffffff"];
const adder = (svg) => (tag, attributes, text) => {
  const element = document.createElementNS(svg.namespaceURI, tag);
  Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
  if (text !== undefined) element.textContent = text;
  return svg.appendChild(element);
};
const written = (svg, width, height) => {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("style", `color:${INK};background:${PAPER}`);
  svg.setAttribute("width", `${width}pt`);
  svg.setAttribute("height", `${height}pt`);
  return new XMLSerializer().serializeToString(svg);
};

// A saved figure stands alone, so the legend that the page shows above it is drawn below it.
const drawLegend = (figure, svg, height) => {
  const entries = [...(figure.closest(".panel")?.querySelectorAll(".legend li") ?? [])];
  const named = entries.filter((entry) => entry.querySelector(".key"));
  const add = adder(svg);
  named.forEach((entry, i) => {
    const y = height + 13 * i;
    const key = entry.querySelector(".key");
    const sign = add("g", { transform: `translate(5 ${y + 1.5}) scale(.8)`, style: key.getAttribute("style"), opacity: key.getAttribute("opacity") });
    sign.append(...[...key.children].map((child) => child.cloneNode(true)));
    add("text", { x: 32, y: y + 9.5, "font-size": 8.5, "font-family": "sans-serif" }, entry.textContent);
  });
  return height + (named.length ? 13 * named.length + 6 : 0);
};
document.querySelectorAll("figure:not(.answer)").forEach((figure) => {
  const svg = figure.querySelector("svg");
  saver(figure, "svg", "image/svg+xml", svg.getAttribute("aria-label"), () => {
    const copy = svg.cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(/\s+/).map(Number);
    return written(copy, width, drawLegend(figure, copy, height));
  });
});

// The chart on top is html; as a file it is drawn anew, panel below panel.
const drawAnswer = (figure) => {
  const svg = figure.querySelector("svg").cloneNode(false);
  const add = adder(svg);
  const [left, width] = [160, 250];
  const text = (x, y, content, more = {}) => add("text", { x, y, "font-size": 9, "font-family": "sans-serif", fill: INK, ...more }, content);
  const across = (place) => left + width * parseFloat(place) / 100;
  let y = 8;
  figure.querySelectorAll(".dots").forEach((panel) => {
    const rows = [...panel.querySelectorAll("li")];
    const line = (x1, x2, y1, y2, more) => add("line", { x1, x2, y1, y2, ...more });
    text(left, y + 8, panel.querySelector(".size").textContent, { "font-weight": "bold" });
    const [top, bottom] = [y + 14, y + 14 + 16 * rows.length];
    panel.querySelectorAll(".axis i").forEach((tick) => {
      line(across(tick.style.left), across(tick.style.left), top, bottom, { stroke: "#dfe3e8" });
      text(across(tick.style.left), bottom + 11, tick.textContent, { "text-anchor": "middle", fill: QUIET });
    });
    const best = panel.querySelector(".best");
    if (best) line(across(best.getAttribute("x1")), across(best.getAttribute("x1")), top, bottom, { stroke: INK, "stroke-dasharray": "3 3" });
    rows.forEach((row, i) => {
      const middle = top + 16 * i + 8;
      const strong = row.matches(".lead, .tied");
      const color = strong || row.matches(".own") ? row.style.color : QUIET;
      const whisker = row.querySelector(".whisker");
      const weight = strong ? { "font-weight": "bold" } : {};
      text(left - 10, middle + 3, row.querySelector(".name").textContent, { "text-anchor": "end", ...weight });
      if (whisker) line(across(whisker.getAttribute("x1")), across(whisker.getAttribute("x2")), middle, middle, { stroke: color, "stroke-width": 1.5 });
      add("circle", { cx: across(row.querySelector("circle").getAttribute("cx")), cy: middle, r: row.matches(".lead") ? 4.5 : 3.5, fill: strong ? color : PAPER, stroke: color, "stroke-width": 1.5 });
      text(left + width + 36, middle + 3, row.querySelector(".value").textContent, { "text-anchor": "end", ...weight });
    });
    y = bottom + 24;
  });
  return written(svg, left + width + 44, y);
};
document.querySelectorAll("figure.answer").forEach((figure) => {
  saver(figure, "svg", "image/svg+xml", figure.dataset.name, () => drawAnswer(figure));
});

// Wide tables and figures show that they scroll, until their end is seen.
document.querySelectorAll(".scroller").forEach((scroller) => {
  const box = scroller.firstElementChild;
  const look = () => {
    scroller.classList.toggle("more", box.scrollWidth - box.clientWidth - box.scrollLeft > 4);
    scroller.classList.toggle("moved", box.scrollLeft > 4);
  };
  box.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(box);
  look();
});
document.querySelectorAll("table.sortable").forEach((table) => {
  const quoted = (text) => `"${text.replace(/"/g, '""')}"`;
  saver(table.caption.firstElementChild, "csv", "text/csv", table.dataset.name, () => {
    const [columns, above] = [...table.tHead.rows].reverse();
    const groups = [...(above?.cells ?? [])].flatMap((cell) => Array(cell.colSpan).fill(cell.textContent));
    const heads = [...columns.cells].map((cell, i) => `${groups[i] ?? ""} ${cell.textContent}`.trim());
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
    return [heads, ...rows].map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  });
});
