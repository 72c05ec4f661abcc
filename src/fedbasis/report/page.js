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

// A saved figure stands alone, so the legend that the page shows above it is drawn below it.
const drawLegend = (figure, svg, height) => {
  const entries = [...(figure.closest(".panel")?.querySelectorAll(".legend li") ?? [])];
  const named = entries.filter((entry) => !entry.querySelector(".shades"));
  const add = (tag, attributes) => {
    const element = document.createElementNS(svg.namespaceURI, tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    return svg.appendChild(element);
  };
  named.forEach((entry, i) => {
    const sign = entry.querySelector("i");
    const y = height + 12 * i + 8;
    const fill = sign.style.color;
    if (sign.className === "dot") add("circle", { cx: 12, cy: y, r: 3.5, fill });
    else if (sign.className === "upright") add("rect", { x: 11, y: y - 5, width: 1.5, height: 10, fill });
    else add("rect", { x: 5, y: y - 1, width: 14, height: 2, fill });
    add("text", { x: 24, y: y + 3, "font-size": 8.5, "font-family": "sans-serif" }).textContent = entry.textContent;
  });
  return height + (named.length ? 12 * named.length + 6 : 0);
};
document.querySelectorAll("figure").forEach((figure) => {
  const svg = figure.querySelector("svg");
  saver(figure, "svg", "image/svg+xml", svg.getAttribute("aria-label"), () => {
    const copy = svg.cloneNode(true);
    const [, , width, height] = svg.getAttribute("viewBox").split(/\s+/).map(Number);
    const whole = drawLegend(figure, copy, height);
    copy.setAttribute("viewBox", `0 0 ${width} ${whole}`);
    copy.setAttribute("style", "color:#1c2128;background:#ffffff");
    copy.setAttribute("width", `${width}pt`);
    copy.setAttribute("height", `${whole}pt`);
    return new XMLSerializer().serializeToString(copy);
  });
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
