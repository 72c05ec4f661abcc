// Sort a table by the column whose heading is clicked; cells without a number stay at the end.
document.querySelectorAll("table.sortable").forEach((table) => {
  const headings = table.querySelectorAll("thead tr:last-child th");
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
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
