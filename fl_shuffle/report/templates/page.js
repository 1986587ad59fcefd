// Tables whose rows lie in the page as data: a page of them at a time, sorted and searched.
// Without scripts the first page stands there.
const short = value => {
  if (value === null) return '-';
  if (typeof value === 'string' || Number.isInteger(value)) return String(value);
  const [digits, power] = value.toExponential(3).split('e'), exponent = Number(power);
  if (exponent >= -4 && exponent <= 3) return String(Number(value.toPrecision(4)));
  const size = String(Math.abs(exponent)).padStart(2, '0');
  return `${Number(digits)}e${exponent < 0 ? '-' : '+'}${size}`;
};
for (const table of document.querySelectorAll('table.paged')) {
  const known = JSON.parse(document.getElementById(table.id + '-rows').textContent);
  const clients = known.clients.flat();
  const group = known.clients.flatMap((own, index) => own.map(() => index));
  const cell = (row, column) =>
    column === 0 ? clients[row] : known.groups[group[row]][column - 1];
  const size = table.tBodies[0].rows.length, pager = document.getElementById(table.id + '-pager');
  const [input] = pager.getElementsByTagName('input'), [told] = pager.getElementsByTagName('output');
  const [back, on] = pager.getElementsByTagName('button');
  let order = clients.map((_, row) => row), found = order, start = 0;
  const draw = () => {
    const rows = found.slice(start, start + size).map(row => {
      const line = document.createElement('tr');
      for (let column = 0; column < table.tHead.rows[0].cells.length; column++) {
        const value = cell(row, column), box = document.createElement(column ? 'td' : 'th');
        if (!column) box.scope = 'row';
        box.className = 'n';
        box.dataset.v = value ?? '';
        box.textContent = short(value);
        line.append(box);
      }
      return line;
    });
    table.tBodies[0].replaceChildren(...rows);
    const last = Math.min(start + size, found.length);
    told.textContent = found.length
      ? `${(start + 1).toLocaleString('en')} to ${last.toLocaleString('en')} of ${
        found.length.toLocaleString('en')}` : 'none';
    back.disabled = start === 0;
    on.disabled = last === found.length;
  };
  const search = () => {
    const wanted = input.value.trim();
    found = wanted ? order.filter(row => String(clients[row]).startsWith(wanted)) : order;
    start = 0;
    draw();
  };
  const rank = value => value === null ? -Infinity : value === 'inf' ? Infinity : value;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener('click', () => {
      const down = head.getAttribute('aria-sort') !== 'descending';
      for (const other of table.tHead.rows[0].cells) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      order.sort((a, b) => {
        const x = rank(cell(a, column)), y = rank(cell(b, column));
        return ((x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1)) || a - b;
      });
      search();
    });
  });
  input.addEventListener('input', search);
  back.addEventListener('click', () => { start -= size; draw(); });
  on.addEventListener('click', () => { start += size; draw(); });
  pager.hidden = false;
  draw();
}
