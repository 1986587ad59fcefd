// What a browser is asked of the page, in frames: headless windows cannot be narrower than 500 px.

// Where the named numbers end, and how much wider than the screen the page is.
const layout = (page, view) => {
  const root = page.documentElement, places = {};
  for (const each of page.querySelectorAll('data'))
    places[each.dataset.key] ??= each.getBoundingClientRect().bottom;
  for (const each of page.querySelectorAll('details')) each.open = true;
  return {beyond: root.scrollWidth - root.clientWidth, places};
};

// Every text that is seen, against the nearest colour behind it.
const contrast = (page, view) => {
  for (const each of page.querySelectorAll('details')) each.open = true;
  const box = Object.assign(page.createElement('canvas'), {width: 1, height: 1});
  const pen = box.getContext('2d', {willReadFrequently: true});
  const light = colour => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    const linear = [r, g, b].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return [0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2], a];
  };
  const behind = each => {
    for (let at = each; at; at = at.parentElement) {
      const [found, opaque] = light(view.getComputedStyle(at).backgroundColor);
      if (opaque === 255) return found;
    }
    return light('white')[0];
  };
  let worst = [99, ''], texts = 0;
  const back = light(view.getComputedStyle(page.body).backgroundColor)[0];
  for (const each of page.querySelectorAll('main *')) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!own || !each.getClientRects().length) continue;
    if (['TITLE', 'DESC', 'SCRIPT'].includes(each.tagName.toUpperCase())) continue;
    const style = view.getComputedStyle(each);
    const [front] = light(each.ownerSVGElement ? style.fill : style.color), rear = behind(each);
    const ratio = (Math.max(front, rear) + 0.05) / (Math.min(front, rear) + 0.05);
    texts++;
    if (ratio < worst[0]) worst = [ratio, each.outerHTML.slice(0, 200)];
  }
  const lines = [...page.querySelectorAll('svg.figure path')]
    .map(path => view.getComputedStyle(path).stroke).filter(stroke => stroke !== 'none')
    .map(stroke => light(stroke)[0])
    .map(front => (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05));
  return {worst, texts, dark: back < 0.2, faintest: Math.min(...lines)};
};

// The table of clients, turned over, sorted and searched.
const turned = (page, view) => {
  const table = page.querySelector('table.paged');
  const pager = page.getElementById(table.id + '-pager');
  const [back, on] = pager.querySelectorAll('button'), input = pager.querySelector('input');
  const shown = () => [[...table.tBodies[0].rows].map(row => row.cells[0].textContent),
                       pager.querySelector('output').textContent, back.disabled, on.disabled];
  const cells = () => [...table.tBodies[0].rows[0].cells].map(cell => cell.textContent);
  const found = {start: shown(), row: cells()};
  on.click();
  found.on = shown();
  table.tHead.rows[0].cells[0].querySelector('button').click();
  found.sorted = shown();
  input.value = '11';
  input.dispatchEvent(new view.Event('input'));
  found.searched = shown();
  input.value = 'x';
  input.dispatchEvent(new view.Event('input'));
  found.none = shown();
  return found;
};

const measure = async (text, widths, probe) => {
  const found = {};
  for (const [width, height] of widths) {
    const frame = document.createElement('iframe');
    frame.style.width = width + 'px';
    frame.style.height = height + 'px';
    frame.style.border = 0;
    frame.srcdoc = text;
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    found[width] = probe(frame.contentDocument, frame.contentWindow);
  }
  document.getElementById('found').textContent = JSON.stringify(found);
};
