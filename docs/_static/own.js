// Tables stay within the screen (own.css): many columns are set small; in one that is too wide long names
// break, and on a narrow screen, or if that is not enough, it becomes a box for every row.
const NARROW = 700;

function fit() {
  for (const table of document.querySelectorAll("article table")) {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
    const width = (element) => element.getBoundingClientRect().width;
    const tooWide = () => width(table) > width(table.parentElement) + 0.5;
    table.classList.remove("breaking", "stacked");
    table.classList.toggle("many-columns", names.length > 5);
    if (names.length === 0 || !tooWide()) continue;
    table.classList.add("breaking");
    if (innerWidth >= NARROW && !tooWide()) continue;
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, place) => (cell.dataset.column = names[place]));
    table.classList.add("stacked");
  }
}
addEventListener("load", fit);
addEventListener("resize", fit);
